#include "engine/base/amount_text.h"

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

TEST_CASE("sizes are printed in the unit that fits", "[base]") {
  CHECK(size_text(0) == "0 bytes");
  CHECK(size_text(1023) == "1023 bytes");
  CHECK(size_text(1024) == "1.0 KiB");
  CHECK(size_text(13'700'000) == "13.1 MiB");
  CHECK(size_text(std::int64_t{5} << 40) == "5120.00 GiB");
  CHECK(gib_text(std::int64_t{3} << 28) == "0.75 GiB");
}

TEST_CASE("a table of sizes has one unit, in which its largest is at least 1", "[base]") {
  CHECK(unit_for(0).name == "bytes");
  CHECK(unit_for(1023).number(1000) == "1000");
  CHECK(unit_for(1024).name == "KiB");
  CHECK(unit_for((1 << 20) - 1).name == "KiB");
  CHECK(unit_for(1 << 20).name == "MiB");
  CHECK(unit_for(14'000'000).number(7'340'032) == "7.000");
  CHECK(unit_for(std::int64_t{1} << 30).name == "GiB");
  CHECK(unit_for(std::int64_t{1} << 50).name == "GiB");
}

TEST_CASE("long numbers have commas, and one of a thing no plural", "[base]") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(-999) == "-999");
  CHECK(grouped(-1'234'567) == "-1,234,567");
  CHECK(grouped(1'008'038'758'400) == "1,008,038,758,400");
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(2, "micro-batch", "micro-batches") == "2 micro-batches");
  CHECK(counted(1, "micro-batch", "micro-batches") == "1 micro-batch");
}

TEST_CASE("times are minutes and seconds, with hours where there are some", "[base]") {
  CHECK(clock_text(0.4) == "0:00");
  CHECK(clock_text(244.6) == "4:05");
  CHECK(clock_text(3599.4) == "59:59");
  CHECK(clock_text(3723.0) == "1:02:03");
}

}  // namespace
}  // namespace dstrain
