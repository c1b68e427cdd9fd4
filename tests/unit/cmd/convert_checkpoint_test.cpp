// `dstrain convert-checkpoint` as a user meets it.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/harness/program.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::StartsWith;
using Catch::Matchers::Contains;
using testing::Program;
using testing::TemporaryFolder;

constexpr std::chrono::milliseconds kPatience{60'000};
const std::string kModel = "tests/golden/huggingface/gpt2-f32";

Program convert(std::vector<std::string> arguments) {
  std::vector<std::string> argv = {testing::dstrain_binary(), "convert-checkpoint"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return Program(argv);
}

void refuses(const std::vector<std::string>& arguments, int exit_code, const std::string& reason) {
  Program program = convert(arguments);
  CHECK(program.wait(kPatience) == exit_code);
  CHECK_THAT(program.err(), Contains(reason));
}

/// An llm.c GPT-2 of zeros: a hole behind a header takes no space.
std::uintmax_t write_zero_model(const fs::path& path, std::int32_t layers, std::int32_t width) {
  constexpr std::int32_t kPositions = 64;
  constexpr std::int32_t kVocabulary = 1024;
  std::vector<std::int32_t> header(256, 0);
  const std::vector<std::int32_t> fields = {20240326, 3, kPositions, kVocabulary,
                                            layers,   8, width,      kVocabulary};
  std::copy(fields.begin(), fields.end(), header.begin());
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(header.data()), 1024);
  const auto w = static_cast<std::uintmax_t>(width);
  const std::uintmax_t elements = (kVocabulary + kPositions) * w +
                                  static_cast<std::uintmax_t>(layers) * (12 * w * w + 13 * w) +
                                  2 * w;
  fs::resize_file(path, 1024 + 4 * elements);
  return 4 * elements;
}

}  // namespace

TEST_CASE("convert-checkpoint tells what it did, in words and in JSON", "[cmd][convert]") {
  if (testing::no_dstrain_here()) return;
  const TemporaryFolder folder;
  const std::string ours = (folder.path() / "ours").string();
  Program words = convert({"--from", kModel, "--to", ours, "--ranks", "2"});
  REQUIRE(words.wait(kPatience) == 0);
  CHECK_THAT(words.out(), Contains("a Hugging Face folder: gpt2 with 16,440 parameters") &&
                              Contains("a dstrain checkpoint: 65.8 kB in 2 files, read back"));
  const std::string back = (folder.path() / "back").string();
  Program json = convert(
      {"--from", ours, "--to", back, "--max-shard-size", "9 kB", "--dtype", "bf16", "--json"});
  REQUIRE(json.wait(kPatience) == 0);
  const auto summary = nlohmann::json::parse(json.out());
  CHECK(summary["from_format"] == "dstrain");
  CHECK(summary["to_format"] == "huggingface");
  CHECK(summary["parameters"] == 16440);
  CHECK(summary["bytes"] == 2 * 16440);
  CHECK(summary["files"].size() > 3);
  CHECK(fs::exists(folder.path() / "back" / "model.safetensors.index.json"));
}

TEST_CASE("convert-checkpoint refuses with a sentence and the right exit code", "[cmd][convert]") {
  if (testing::no_dstrain_here()) return;
  const TemporaryFolder folder;
  const std::string to = (folder.path() / "to").string();
  refuses({"--from", "/nowhere", "--to", to}, 2, "/nowhere: there is no such file or folder");
  refuses({"--from", kModel, "--to", to, "--max-shard-size", "large"}, 2,
          "--max-shard-size large: expected a size such as 5GB or 200MB");
  refuses({"--from", kModel, "--to", to, "--format", "gguf"}, 2, "--format");
  refuses({"--from", kModel, "--to", folder.path().parent_path().string()}, 2, "is not empty");
  fs::copy(kModel, to);
  fs::resize_file(fs::path(to) / "model.safetensors", 20000);
  refuses({"--from", to, "--to", (folder.path() / "x").string()}, 5,
          "model.safetensors: its tensors");
}

TEST_CASE("memory stays small whatever the model's size", "[cmd][convert]") {
  if (testing::no_dstrain_here()) return;
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const TemporaryFolder folder;
  const std::string model = (folder.path() / "zeros.bin").string();
  const auto bytes = static_cast<std::int64_t>(write_zero_model(model, 8, 1024));
  REQUIRE(bytes > 380 * kMiB);
  Program program = convert({"--from", model, "--to", (folder.path() / "hf").string(), "--format",
                             "huggingface", "--dtype", "bf16", "--json"});
  REQUIRE(program.wait(kPatience) == 0);
  const auto summary = nlohmann::json::parse(program.out());
  CHECK(summary["bytes"].get<std::int64_t>() == bytes / 2);
#ifndef DSTRAIN_SANITIZED  // AddressSanitizer keeps what is freed
  CHECK(summary["peak_resident_bytes"].get<std::int64_t>() < 128 * kMiB);
#endif
}

TEST_CASE("an interrupted conversion says so and is finished by the same command",
          "[cmd][convert]") {
  if (testing::no_dstrain_here()) return;
  const TemporaryFolder folder;
  const std::string model = (folder.path() / "zeros.bin").string();
  write_zero_model(model, 8, 1024);
  const std::vector<std::string> arguments = {
      "--from", model, "--to", (folder.path() / "ours").string(), "--ranks", "8"};
  {
    Program program = convert(arguments);
    const fs::path second = folder.path() / "ours" / ".rank-00001.safetensors.part";
    testing::becomes_true([&] { return fs::exists(second); }, kPatience);
    program.signal(SIGTERM);
    REQUIRE(program.wait(kPatience) == 128 + SIGTERM);
    CHECK_THAT(program.err(), StartsWith("[convert-checkpoint] ") &&
                                  Contains(" warning: interrupted; ") &&
                                  Contains("the same command again"));
  }
  CHECK_FALSE(fs::exists(folder.path() / "ours" / "manifest.json"));
  refuses({"--from", (folder.path() / "ours").string(), "--to", "x"}, 2,
          "is a conversion that was interrupted");
  {
    Program killed = convert(arguments);
    const fs::path third = folder.path() / "ours" / ".rank-00002.safetensors.part";
    testing::becomes_true([&] { return fs::exists(third); }, kPatience);
    killed.signal(SIGKILL);
    REQUIRE(killed.wait(kPatience) == 128 + SIGKILL);
  }
  Program again = convert(arguments);
  REQUIRE(again.wait(kPatience) == 0);
  CHECK_THAT(again.out(), Contains("had been finished by an interrupted conversion"));
  CHECK(fs::exists(folder.path() / "ours" / "manifest.json"));
  for (const auto& entry : fs::directory_iterator(folder.path() / "ours")) {
    CHECK(entry.path().filename().string()[0] != '.');  // nothing left over
  }
}

}  // namespace dstrain
