// `dstrain launch CONFIG --write-fixed FILE` as a user meets it.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/program.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using testing::Program;

constexpr std::chrono::milliseconds kPatience{20'000};

constexpr const char* kMistaken = R"({
  "train_batch_size": 7,                      // of 2 ranks
  "gradient_cliping": 0.5,
  "zero_optimization": {"stage": 1, "mics_shard_size": 4},
  "optimizer": {"type": "adamw", "params": {"lr": 1e-3}},
  "model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 128},
  "data": {"train": "data/train"},
  "training": {"steps": %STEPS%},
})";

std::string mistaken(const std::string& steps) {
  std::string text = kMistaken;
  return text.replace(text.find("%STEPS%"), 7, steps);
}

class Folder {
 public:
  Folder() { std::filesystem::create_directories(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return *this / name;
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream in(path_ / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("dstrain_write_fixed_" + std::to_string(getpid()));
};

Program launch(std::vector<std::string> arguments) {
  std::vector<std::string> argv = {testing::dstrain_binary(), "launch", "--num_gpus", "2"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return Program(argv);
}

TEST_CASE("a mended copy is accepted, and the config stays as it is", "[cmd][launch]") {
  if (testing::no_dstrain_here()) return;
  const Folder folder;
  const std::string config = folder.write("run.json", mistaken("10"));
  const std::string copy = folder / "mended.json";
  Program refused = launch({"--check", "--offline", config});
  CHECK(refused.wait(kPatience) == 2);
  CHECK_THAT(refused.err(), Contains("run.json: 3 errors\n") &&
                                Contains("run.json:2:23: train_batch_size: 7 is not a multiple") &&
                                Contains("(--set train_batch_size=8)") &&
                                Contains("run.json:3:3: gradient_cliping: unknown key") &&
                                Contains("(--set zero_optimization.mics_shard_size=-1)") &&
                                Contains("--write-fixed FILE corrects all of them in a copy"));
  Program mended = launch({config, "--write-fixed", copy});
  CHECK(mended.wait(kPatience) == 0);
  CHECK_THAT(mended.out(), Contains("gradient_cliping is now gradient_clipping") &&
                               Contains("mended.json was written: 3 changes"));
  CHECK(folder.read("run.json") == mistaken("10"));
  CHECK_THAT(folder.read("mended.json"),
             Contains("\"train_batch_size\": 8,                      // of 2 ranks // was: 7: "));
  Program accepted = launch({"--check", "--offline", copy});
  CHECK(accepted.wait(kPatience) == 0);

  Program again = launch({config, "--write-fixed", copy});
  CHECK(again.wait(kPatience) == 2);
  CHECK_THAT(again.err(), Contains("mended.json: already exists"));
  Program itself = launch({config, "--write-fixed", config});
  CHECK(itself.wait(kPatience) == 2);
  CHECK(folder.read("run.json") == mistaken("10"));
}

TEST_CASE("what cannot be mended is listed, and nothing is written", "[cmd][launch]") {
  if (testing::no_dstrain_here()) return;
  const Folder folder;
  const std::string config = folder.write("run.json", mistaken("\"many\""));
  const std::string copy = folder / "mended.json";
  Program left = launch({config, "--write-fixed", copy});
  CHECK(left.wait(kPatience) == 2);
  CHECK_THAT(left.out(), Contains("gradient_cliping is now gradient_clipping"));
  CHECK_THAT(left.err(), Contains("run.json:10:25: training.steps: must be an integer") &&
                             !Contains("gradient_cliping"));
  CHECK_FALSE(std::filesystem::exists(copy));
  CHECK_FALSE(std::filesystem::exists(copy + ".partial"));
  Program told = launch({config, "--write-fixed", copy, "--set", "training.steps=5"});
  CHECK(told.wait(kPatience) == 0);
  CHECK_THAT(folder.read("mended.json"), Contains("{\"steps\": 5}, // was: \"many\": --set"));
}

}  // namespace
}  // namespace dstrain
