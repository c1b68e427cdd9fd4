// Numbers and structs as bytes: the same on every machine, and nothing is believed of what comes
// in.
#include "engine/base/wire.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

TEST_CASE("numbers are little-endian, in as many bytes as they have", "[base][wire]") {
  std::string bytes;
  put_number(bytes, std::uint16_t{0x0102});
  put_number(bytes, std::int32_t{-2});
  CHECK(bytes == std::string("\x02\x01\xfe\xff\xff\xff", 6));
  std::string_view left = bytes;
  CHECK(take_number<std::uint16_t>(left) == 0x0102);
  CHECK(take_number<std::int32_t>(left) == -2);
  CHECK(left.empty());
}

struct Fields {
  std::uint8_t small = 0;
  bool flag = false;
  std::string text;
  std::vector<std::int64_t> numbers;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(small, flag, text, numbers);
  }
};

TEST_CASE("a struct comes back as it went, and from no part of its bytes", "[base][wire]") {
  Fields sent{
      .small = 7, .flag = true, .text = std::string("a\0b", 3), .numbers = {-1, 1'000'000'000'000}};
  WireWriter writer;
  writer(sent);
  const std::string bytes = writer.take();
  Fields got;
  WireReader reader(bytes);
  reader(got);
  reader.end();
  CHECK(got.small == 7);
  CHECK(got.flag);
  CHECK(got.text == sent.text);
  CHECK(got.numbers == sent.numbers);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    WireReader part(std::string_view(bytes).substr(0, size));
    CHECK_THROWS_AS(part(got), ProtocolError);
  }
}

TEST_CASE("an enum, a time and a value that may be missing come back as they went",
          "[base][wire]") {
  enum class Colour : std::uint8_t { kRed, kBlue };
  Colour colour = Colour::kBlue;
  std::chrono::milliseconds time{-3};
  std::optional<std::int32_t> number = 7;
  std::optional<std::int32_t> none;
  WireWriter writer;
  writer(colour, time, number, none);
  const std::string bytes = writer.take();
  CHECK(bytes == std::string("\x01\xfd\xff\xff\xff\xff\xff\xff\xff\x01\x07\0\0\0\0", 15));
  colour = Colour::kRed;
  time = {};
  number.reset();
  none = 1;
  WireReader reader(bytes);
  reader(colour, time, number, none);
  reader.end();
  CHECK(colour == Colour::kBlue);
  CHECK(time == std::chrono::milliseconds{-3});
  CHECK(number == 7);
  CHECK_FALSE(none);
}

TEST_CASE("a length that the bytes cannot hold takes no memory", "[base][wire]") {
  std::string bytes;
  put_number(bytes, std::uint32_t{0xffffffffU});
  std::vector<std::int64_t> numbers;
  WireReader reader(bytes);
  CHECK_THROWS_WITH(reader(numbers), "a list of 4294967295 elements where 0 bytes are left");
}

}  // namespace
}  // namespace dstrain
