#include "engine/checkpoint/foreign/pytorch/torch_file.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <map>

#include <catch2/catch.hpp>
#include <fcntl.h>

#include "engine/base/file_descriptor.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/unit/checkpoint/hand_made_zip.h"
#include "tests/unit/checkpoint/scratch_folder.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using namespace std::string_literals;
using Catch::Matchers::Contains;

namespace {

const std::filesystem::path kFolder = DSTRAIN_UNPACKED "/deepspeed-checkpoints/torch-save";

std::vector<std::byte> all_elements(const TorchFile& file, const TorchTensor& tensor) {
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(tensor.num_elements() * tensor.dtype->bytes));
  copy_elements(tensor, file.storage(tensor), 0, tensor.num_elements(), bytes);
  return bytes;
}

void refuses(const std::string& content, const std::string& reason) {
  const ScratchFolder folder;
  const auto path = folder.path() / "states.pt";
  overwrite_file(path, content);
  CHECK_THROWS_WITH(TorchFile(path), Contains(path.string()) && Contains(reason));
  CHECK_THROWS_AS(TorchFile(path), CheckpointError);
}

/// {"w": a float tensor of `elements` in storage 0}.
std::string pickle_with_tensor(std::int64_t elements) {
  const std::string size = "\x8a\x08" + number(elements);
  return "\x80\x02}X\x01\0\0\0w"s + "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"s +
         "ctorch\nFloatStorage\nX\x01\0\0\0"
         "0X\x03\0\0\0cpu"s +
         size + "tQK\0("s + size + "tK\x01\x85\x89}tRs.";
}

}  // namespace

TEST_CASE("tensors of torch.save are those that safetensors holds, bit for bit",
          "[checkpoint][pytorch]") {
  const std::string name = GENERATE("dtypes", "views");
  const TorchFile file(kFolder / (name + ".pt"));
  const SafetensorsFile expected(kFolder / (name + ".safetensors"));
  const auto entries = file.root().entries("the file");
  CHECK(entries.size() == expected.tensors().size());
  for (const auto& [key, value] : entries) {
    INFO(key.text("key"));
    const TorchTensor tensor = value.tensor("tensor");
    const SafetensorsEntry& entry = expected.tensors().at(std::string(key.text("key")));
    CHECK(tensor.dtype->safetensors_name == entry.dtype);
    CHECK(tensor.shape == entry.shape);
    const auto bytes = expected.data(entry);
    CHECK(all_elements(file, tensor) == std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
}

TEST_CASE("a strided view is read in row-major order from any element on",
          "[checkpoint][pytorch]") {
  const TorchFile file(kFolder / "views.pt");
  const TorchTensor slice = file.root().at("slice").tensor("slice");  // base[1:, ::2, 1:4]
  REQUIRE(slice.shape == std::vector<std::int64_t>{2, 2, 3});
  CHECK_FALSE(slice.is_contiguous());
  std::vector<float> out(7);
  read_floats(slice, file.storage(slice), 4, out);
  CHECK(out == std::vector<float>{32, 33, 41, 42, 43, 51, 52});
  CHECK(file.root().at("base").tensor("t").storage_key == slice.storage_key);
}

TEST_CASE("all real dtypes of 16 bits and more become fp32, others are refused",
          "[checkpoint][pytorch]") {
  const TorchFile file(kFolder / "dtypes.pt");
  const auto floats = [&](const char* name) {
    const TorchTensor tensor = file.root().at(name).tensor(name);
    std::vector<float> out(static_cast<std::size_t>(tensor.num_elements()));
    read_floats(tensor, file.storage(tensor), 0, out);
    return out;
  };
  const auto exact = floats("float32");
  CHECK(floats("float64") == exact);  // it was made from it
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CHECK(std::abs(floats("bfloat16")[i] - exact[i]) <= std::abs(exact[i]) * 0x1p-8F);
    CHECK(std::abs(floats("float16")[i] - exact[i]) <= std::abs(exact[i]) * 0x1p-11F);
    CHECK((floats("bool")[i] != 0) == (exact[i] > 0));
  }
  for (const char* name : {"int64", "int32", "int16", "int8"}) {
    CHECK(floats(name) == std::vector<float>{-3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  }
  CHECK(floats("uint8") == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(floats("uint16")[1] == 65535.0F);
  CHECK(floats("uint32")[1] == 0x1p32F);
  CHECK(floats("uint64")[1] == 0x1p63F);
  CHECK(floats("scalar") == std::vector<float>{2.5F});
  CHECK(floats("empty").empty());
  CHECK_THROWS_WITH(floats("complex64"), Contains("complex64"));
  CHECK_THROWS_WITH(floats("float8_e4m3fn"), Contains("float8_e4m3fn"));
}

TEST_CASE("nested values of torch.save are read in both protocols", "[checkpoint][pytorch]") {
  const TorchFile file(kFolder / GENERATE("nested.pt", "nested-protocol4.pt"));
  const PickleValue root = file.root();
  CHECK(root.at("none").is_none());
  CHECK(root.at("truth").items("truth")[0].truth("truth"));
  CHECK_FALSE(root.at("truth").items("truth")[1].truth("truth"));
  std::vector<std::int64_t> integers;
  for (const PickleValue& value : root.at("integers").items("integers")) {
    integers.push_back(value.integer("integer"));
  }
  CHECK(integers == std::vector<std::int64_t>{0, -1, 255, 256, 65536, INT32_MIN, 1LL << 31,
                                              INT64_MAX, INT64_MIN});
  CHECK(root.at("float").number("float") == -0.1);
  CHECK(root.at("text").text("text") == "naïve ✓");
  CHECK(root.at("bytes").bytes("bytes") == "\0\xff"s);
  const auto ordered = root.at("ordered").entries("ordered");
  REQUIRE(ordered.size() == 2);
  CHECK(ordered[0].first.text("key") == "b");
  for (const PickleValue& value : root.at("empty").items("empty")) {
    CHECK((value.kind() == PickleKind::kDict ? value.entries("e").size()
                                             : value.items("e").size()) == 0);
  }
  CHECK(root.at("set").items("set").at(0).integer("seven") == 7);
  CHECK(root.at("frozen").items("frozen").at(0).integer("eight") == 8);
  CHECK(root.at("size").items("size").at(1).integer("three") == 3);
  CHECK(root.at("dtype").class_name() == "torch.bfloat16");
  CHECK(root.at("device").class_name() == "torch.device");
  CHECK(root.at("scalar").number("scalar") == 0.5);
  CHECK(root.at("integer").integer("integer") == 7);
  CHECK_THROWS_WITH(root.at("scalar").integer("scalar"), Contains("expected an integer"));
  CHECK(root.at("path").class_name() == "pathlib.PurePosixPath");
  CHECK(root.at("default").at("x").items("x").size() == 1);
  CHECK(root.at("long").text("long") == std::string(300, 'x'));
  const PickleValue space = root.at("namespace");
  CHECK(space.class_name() == "argparse.Namespace");
  CHECK(space.attributes().value().at("lr").number("lr") == 0.5);
  const PickleValue cycle = root.at("cycle");
  CHECK(cycle.items("cycle").at(0).is(cycle));
}

TEST_CASE("files that torch.save did not write are refused with the reason",
          "[checkpoint][pytorch]") {
  CHECK_THROWS_WITH(TorchFile(kFolder / "legacy.pt"),
                    Contains("legacy.pt: is in the format of torch before 1.6"));
  CHECK_THROWS_WITH(TorchFile(kFolder / "absent.pt"), Contains("No such file"));
  refuses("", "is not a zip archive");
  refuses(zip_of({{.name = "a/other", .content = ""}}), "without data.pkl");
  refuses(zip_of({{.name = "a/data.pkl", .content = "\x80\x02N."},
                  {.name = "b/data.pkl", .content = "\x80\x02N."}}),
          "two pickles, \"a/data.pkl\" and \"b/data.pkl\"");
  refuses(zip_of({{.name = "a/data.pkl", .content = "\x80\x02N."},
                  {.name = "a/constants.pkl", .content = ""}}),
          "TorchScript");
  refuses(zip_of({{.name = "a/data.pkl", .content = "\x80\x02N."},
                  {.name = "a/byteorder", .content = "big"}}),
          "the byte order \"big\"");
  refuses(zip_of({{.name = "a/data.pkl", .content = "N."}}), "begins with PROTO");
  refuses(torch_zip_of(pickle_with_tensor(2), {{"1", std::string(8, 'x')}}),
          "has no entry \"a/data/0\"");
  refuses(torch_zip_of(pickle_with_tensor(2), {{"0", std::string(7, 'x')}}),
          "entry \"a/data/0\" has 7 bytes, its tensors expect 8");
}

TEST_CASE("a file of more than 4 GiB is opened without reading its tensors",
          "[checkpoint][pytorch]") {
  // The tensor's zeros are a hole in the file; its last element is written.
  constexpr std::int64_t kElements = (std::int64_t{5} << 30) / 4;
  const ScratchFolder folder;
  const auto path = folder.path() / "large.pt";
  const ZipMember storage{.name = "a/data/0", .content = "", .is_wide = true};
  const ZipMember pickle{
      .name = "a/data.pkl", .content = pickle_with_tensor(kElements), .is_wide = true};
  const std::string head = local_part(storage);
  const auto storage_end = static_cast<std::int64_t>(head.size()) + kElements * 4;
  const std::string last = number(1.5F);
  const std::string pickle_text = local_part(pickle);
  const std::string directory =
      directory_part(storage, 0, kElements * 4) +
      directory_part(pickle, storage_end, static_cast<std::int64_t>(pickle.content.size()));
  const auto directory_begin = storage_end + static_cast<std::int64_t>(pickle_text.size());
  const std::string tail =
      last + pickle_text + directory +
      end_part(directory_begin, static_cast<std::int64_t>(directory.size()), 2, {.is_zip64 = true});
  {
    const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(::pwrite(file.get(), head.data(), head.size(), 0) == static_cast<ssize_t>(head.size()));
    REQUIRE(::pwrite(file.get(), tail.data(), tail.size(), storage_end - 4) ==
            static_cast<ssize_t>(tail.size()));
  }
  const TorchFile file(path);
  const TorchTensor tensor = file.root().at("w").tensor("w");
  CHECK(tensor.num_elements() == kElements);
  // Does not use storage(), which reads all of it to compare its checksum.
  const auto mapped = MappedFile::open<CheckpointError>(path);
  const ZipEntry entry = read_zip_directory(mapped.bytes()).front();
  CHECK(entry.name == "a/data/0");
  const auto content = mapped.bytes().subspan(static_cast<std::size_t>(entry.begin_byte),
                                              static_cast<std::size_t>(entry.bytes));
  std::vector<float> out(2);
  read_floats(tensor, content, kElements - 2, out);
  CHECK(out == std::vector<float>{0, 1.5F});
}

namespace {

/// Every tensor of a file of tensors, by name.
std::map<std::string, std::vector<std::byte>> all_tensors(const TorchFile& file) {
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const auto& [key, value] : file.root().entries("the file")) {
    tensors.emplace(key.text("key"), all_elements(file, value.tensor("tensor")));
  }
  return tensors;
}

}  // namespace

TEST_CASE("no flipped byte of a torch file changes what is read", "[checkpoint][pytorch]") {
  const std::string name = GENERATE("dtypes", "views");
  std::ifstream in(kFolder / (name + ".pt"), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const ScratchFolder folder;
  const auto path = folder.path() / "states.pt";
  overwrite_file(path, whole);
  const auto expected = all_tensors(TorchFile(path));
  std::vector<ZipEntry> storages;
  for (const ZipEntry& entry : read_zip_directory(std::as_bytes(std::span(whole)))) {
    if (entry.name.find("/data/") != std::string::npos) storages.push_back(entry);
  }
  REQUIRE_FALSE(storages.empty());
  std::size_t refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    overwrite_file(path, damaged);
    std::string said;
    bool same = false;
    try {
      const TorchFile file(path);
      same = all_tensors(file) == expected;
    } catch (const CheckpointError& error) {
      said = error.what();
    }
    if (said.empty() && !same) FAIL("byte " << at << " is other, and nothing is said");
    refused += said.empty() ? 0 : 1;
    for (const ZipEntry& entry : storages) {
      const auto offset = static_cast<std::int64_t>(at) - entry.begin_byte;
      if (offset < 0 || offset >= entry.bytes) continue;
      if (said.find("entry \"" + entry.name + "\" has the CRC-32") == std::string::npos) {
        FAIL("byte " << at << ": " << said);
      }
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("a pickle that its checksum does not fit is refused", "[checkpoint][pytorch]") {
  refuses(zip_of({{.name = "a/data.pkl", .content = "\x80\x02N.", .crc_error = 1}}),
          "entry \"a/data.pkl\" has the CRC-32 ");
  refuses(zip_of({{.name = "a/data.pkl", .content = "\x80\x02N."},
                  {.name = "a/byteorder", .content = "little", .crc_error = 1U << 31}}),
          "entry \"a/byteorder\" has the CRC-32 ");
}
