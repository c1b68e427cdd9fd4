#include "engine/checkpoint/safetensors.h"

#include <cstring>
#include <ctime>

#include <catch2/catch.hpp>

#include "kernels/core/check.h"
#include "tests/unit/checkpoint/scratch_folder.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;

namespace {

/// A file with the given header and data, as the format's page describes it.
std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + data;
}

void refuses(const std::string& content, const std::string& reason) {
  const ScratchFolder folder;
  const auto path = folder.path() / "model.safetensors";
  overwrite_file(path, content);
  CHECK_THROWS_WITH(SafetensorsFile(path), Contains(path.string()) && Contains(reason));
  CHECK_THROWS_AS(SafetensorsFile(path), CheckpointError);
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

TEST_CASE("the reader reads what Python's safetensors wrote", "[checkpoint]") {
  // save({"a": float32 [[1, 2], [3, 4]], "b": int16 [7]}, {"format": "pt"}) of release 0.8.
  const std::string content = file_of(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"I16","shape":[1],"data_offsets":[16,18]}} )",
      std::string("\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40\x07\x00", 18));
  REQUIRE(content.size() == 170);
  const ScratchFolder folder;
  overwrite_file(folder.path() / "f", content);
  const SafetensorsFile file(folder.path() / "f");
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.tensors().size() == 2);
  CHECK(file.tensors().at("a").shape == std::vector<std::int64_t>{2, 2});
  const auto data = file.data(file.tensors().at("a"));
  const std::vector<float> expected{1, 2, 3, 4};
  REQUIRE(data.size() == 16);
  CHECK(std::memcmp(data.data(), expected.data(), 16) == 0);
  CHECK(file.data(file.tensors().at("b"))[0] == std::byte{7});
}

TEST_CASE("the writer's files have aligned data and the bytes that were given", "[checkpoint]") {
  const ScratchFolder folder;
  const auto path = folder.path() / "f";
  const std::vector<float> large(700'000, 1.5F);  // past the size that is gathered
  const std::vector<float> small{1, 2, 3};
  const std::vector<std::uint16_t> half{0x3f80};
  const DurableFiles files;
  SafetensorsWriter writer(files, path,
                           std::vector<SafetensorsDecl>{{"small", "F32", {3}},
                                                        {"none \"of\" them", "F32", {0, 4}},
                                                        {"large", "F32", {700, 1000}},
                                                        {"scalar", "BF16", {}}},
                           {{"format", "pt"}});
  writer.write(bytes_of(small));
  writer.write({});
  writer.write(bytes_of(large));
  writer.write(bytes_of(half));
  writer.finish();

  const SafetensorsFile file(path);
  CHECK(static_cast<std::int64_t>(std::filesystem::file_size(path)) == writer.file_bytes());
  CHECK(file.header().size() % 8 == 0);
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.tensors().at("none \"of\" them").shape == std::vector<std::int64_t>{0, 4});
  const auto data = file.data(file.tensors().at("large"));
  REQUIRE(data.size() == large.size() * 4);
  CHECK(std::memcmp(data.data(), large.data(), data.size()) == 0);
  CHECK(std::memcmp(file.data(file.tensors().at("small")).data(), small.data(), 12) == 0);
  CHECK(std::memcmp(file.data(file.tensors().at("scalar")).data(), half.data(), 2) == 0);
}

TEST_CASE("the writer refuses tensors that would lie unaligned, twice or unfinished",
          "[checkpoint]") {
  const ScratchFolder folder;
  const DurableFiles files;
  const auto write = [&](std::vector<SafetensorsDecl> tensors) {
    SafetensorsWriter(files, folder.path() / "f", tensors, {}).finish();
  };
  CHECK_THROWS_AS(write({{"a", "BF16", {1}}, {"b", "F32", {1}}}), InternalError);
  CHECK_THROWS_AS(write({{"a", "F32", {0}}, {"a", "F32", {0}}}), InternalError);
  CHECK_THROWS_AS(write({{"a", "F33", {0}}}), InternalError);
  CHECK_THROWS_AS(write({{"a", "F32", {1}}}), InternalError);
  CHECK_NOTHROW(write({}));
}

TEST_CASE("files that are not safetensors are refused with the reason", "[checkpoint]") {
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string data(8, 'x');
  refuses("", "too few");
  refuses("short", "too few");
  refuses(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), "a header of");
  refuses(file_of("{" + a + "}", "xxx"), "cut short");
  refuses(file_of("{" + a + "}", "xxxxx"), "fill 4 bytes");
  refuses(file_of("[1]", ""), "does not begin with {");
  refuses(file_of(" {}", ""), "does not begin with {");
  refuses(file_of("{" + a + "," + a + "}", data), "\"a\" comes twice");
  refuses(file_of("{" + a, data), "damaged header");
  refuses(file_of("{\"a\": 3}", ""), "tensor \"a\"");
  refuses(file_of("{\"\xff\":{}}", ""), "damaged header");
  refuses(file_of(R"({"__metadata__":{"n":1}})", ""), "damaged header");
  refuses(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "xxxx"),
          "do not fit");
  refuses(file_of(R"({"a":{"dtype":"X1","shape":[1],"data_offsets":[0,4]}})", "xxxx"), "X1");
  refuses(file_of(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "x"), "do not fit");
  refuses(file_of(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "x"), "-1");
  refuses(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx"), "expected 0");
  refuses(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "x"), "do not fit");
  refuses(file_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,16],"data_offsets":[0,0]}})",
                  ""),
          "do not fit");
  refuses(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                  "xxx"),
          "expected 2");
}

namespace {

/// Processor time of opening a file of so many empty tensors.
double seconds_to_open(int tensors) {
  std::string header = "{";
  for (int i = 0; i < tensors; ++i) {
    header += (i == 0 ? "\"model.layers." : ",\"model.layers.") + std::to_string(i) +
              R"(.weight":{"dtype":"F32","shape":[0,8],"data_offsets":[0,0]})";
  }
  const ScratchFolder folder;
  const auto path = folder.path() / "model.safetensors";
  overwrite_file(path, file_of(header + "}", ""));
  const std::clock_t begin = std::clock();
  CHECK(SafetensorsFile(path).tensors().size() == static_cast<std::size_t>(tensors));
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

}  // namespace

TEST_CASE("the time of a header grows as its tensors do", "[checkpoint]") {
  seconds_to_open(1000);
  const double few = seconds_to_open(8'000);
  const double many = seconds_to_open(64'000);
  INFO("8,000: " << few << " s, 64,000: " << many << " s");
  CHECK(many < 24 * few + 0.05);  // 8 times, and more for the caches; in square time 64
}

TEST_CASE("a missing file and a folder are refused as such", "[checkpoint]") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH(SafetensorsFile(folder.path() / "absent"), Contains("No such file"));
  CHECK_THROWS_WITH(SafetensorsFile(folder.path()), Contains("is a folder, not a file"));
}
