// FNV-1a against the test vectors of draft-eastlake-fnv, appendix C.
#include "engine/base/fnv_hash.h"

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

TEST_CASE("FNV-1a gives the draft's hashes", "[base]") {
  CHECK(fnv_hash<std::uint32_t>("") == 0x811c9dc5U);
  CHECK(fnv_hash<std::uint32_t>("a") == 0xe40c292cU);
  CHECK(fnv_hash<std::uint32_t>("foobar") == 0xbf9cf968U);
  CHECK(fnv_hash<std::uint64_t>("") == 0xcbf29ce484222325U);
  CHECK(fnv_hash<std::uint64_t>("a") == 0xaf63dc4c8601ec8cU);
  CHECK(fnv_hash<std::uint64_t>("foobar") == 0x85944171f73967e8U);
}

}  // namespace
}  // namespace dstrain
