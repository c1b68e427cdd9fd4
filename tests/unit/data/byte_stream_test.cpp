#include "engine/data/input/byte_stream.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/data/input/line_reader.h"
#include "tests/unit/data/packed.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::ScratchFolder;
using test::write_file;

struct Packing {
  Compression compression;
  const char* name;
  std::function<std::string(std::string_view)> pack;
};

const std::vector<Packing>& packings() {
  static const std::vector<Packing> all = {{Compression::kGzip, "gzip", test::gzip},
                                           {Compression::kZstd, "zstd", test::zstd},
                                           {Compression::kXz, "xz", test::xz}};
  return all;
}

/// 300 kB that do not shrink to nothing.
std::string some_text() {
  std::string text;
  std::uint32_t state = 1;
  while (text.size() < 300'000) {
    state = state * 1664525U + 1013904223U;
    text += "word" + std::to_string(state >> 12) + (state % 7 == 0 ? "\n" : " ");
  }
  return text;
}

std::string read_all(const std::string& path, Compression compression, std::size_t step = 7001) {
  const auto stream = ByteStream::open(path, compression);
  std::string text;
  std::vector<char> bytes(step);
  while (const std::size_t count = stream->read(bytes)) {
    text.append(bytes.data(), count);
  }
  return text;
}

TEST_CASE("packed members one behind the other are one text", "[data][input]") {
  const ScratchFolder folder;
  const std::string text = some_text();
  const std::string path = folder / "packed";
  for (const Packing& packing : packings()) {
    INFO(packing.name);
    write_file(path, packing.pack(text));
    CHECK(compression_of(test::read_file(path)) == packing.compression);
    CHECK(read_all(path, packing.compression) == text);
    CHECK(read_all(path, packing.compression, 1 << 20) == text);
    write_file(path, packing.pack(text) + packing.pack("") + packing.pack("tail"));
    CHECK(read_all(path, packing.compression) == text + "tail");
    // Padded with zeros, as on tapes and in archives of blocks.
    write_file(path, packing.pack("a") + std::string(8, '\0') + packing.pack("b") +
                         std::string(512, '\0'));
    CHECK(read_all(path, packing.compression) == "ab");

    const auto stream = ByteStream::open(path, packing.compression);
    stream->skip(1);
    char next = 0;
    REQUIRE(stream->read({&next, 1}) == 1);
    CHECK(next == 'b');
  }
}

TEST_CASE("packed data that are cut short anywhere are an error that names file and byte",
          "[data][input]") {
  const ScratchFolder folder;
  const std::string path = folder / "packed";
  for (const Packing& packing : packings()) {
    const std::string packed = packing.pack(some_text());
    std::vector<std::size_t> sizes = {packed.size() - 1, packed.size() - 4, packed.size() / 2, 7};
    for (std::size_t size = 12; size < 40; ++size)
      sizes.push_back(size);
    for (const std::size_t size : sizes) {
      INFO(packing.name << " " << size << " of " << packed.size());
      write_file(path, packed.substr(0, size));
      CHECK_THROWS_WITH(read_all(path, packing.compression),
                        Contains(path + " is cut short: it ends at byte " + std::to_string(size)) &&
                            Contains(packing.name) && Contains("--exclude 'packed'"));
      const std::string whole = packing.pack("whole");
      write_file(path, whole + packed.substr(0, size));
      CHECK_THROWS_WITH(read_all(path, packing.compression),
                        Contains("begin at byte " + std::to_string(whole.size())));
    }
  }
}

TEST_CASE("a changed byte of packed data does not go unnoticed", "[data][input]") {
  const ScratchFolder folder;
  const std::string path = folder / "packed";
  const std::string text = some_text();
  for (const Packing& packing : packings()) {
    const std::string packed = packing.pack(text);
    // The gzip header is left out, since nothing depends on its time and system.
    for (std::size_t at = 10; at < packed.size(); at += packed.size() / 50) {
      INFO(packing.name << " " << at);
      std::string changed = packed;
      changed[at] = static_cast<char>(changed[at] ^ 0x10);
      write_file(path, changed);
      CHECK_THROWS_WITH(read_all(path, packing.compression),
                        Contains(path + " is ") && Contains("at byte"));
    }
    write_file(path, packed + "what follows is not packed");
    CHECK_THROWS_WITH(read_all(path, packing.compression),
                      Contains("is damaged near byte") &&
                          Contains("begin at byte " + std::to_string(packed.size())));
  }
}

TEST_CASE("lines come whole, in blocks of any size, and one too long is passed over",
          "[data][input]") {
  const ScratchFolder folder;
  const std::string path = folder / "lines";
  const std::string long_line(3'000'000, 'x');
  write_file(path, "one\n\ntwo\n" + long_line + "\nthree\nfour");
  for (const std::size_t block_bytes : {1, 2, 5, 100, 1 << 20}) {
    INFO(block_bytes);
    const auto stream = ByteStream::open(path, Compression::kNone);
    LineReader reader(*stream, 1000);
    std::string lines;
    std::string block;
    int too_long = 0;
    for (auto got = reader.next(block, block_bytes); got != LineReader::Next::kEnd;
         got = reader.next(block, block_bytes)) {
      lines += block;
      too_long += got == LineReader::Next::kLineTooLong ? 1 : 0;
      CHECK((block.empty() || block.back() == '\n' || block.ends_with("four")));
      // Bytes that are skipped count as well.
      CHECK(reader.position() == static_cast<std::int64_t>(lines.size()) + too_long * 3'000'001);
    }
    CHECK(too_long == 1);
    CHECK(lines == "one\n\ntwo\nthree\nfour");
  }
}

}  // namespace
}  // namespace dstrain
