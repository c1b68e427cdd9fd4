// The start of a run, as a user sees it: what has changed since its checkpoint, nothing left to do,
// tokenizers that do not belong together; and a run's folder that is used far from its data.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "tests/harness/program.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using testing::Program;

constexpr std::chrono::milliseconds kPatience{60'000};

struct Ended {
  int exit_code;
  std::string out;
  std::string err;
};

/// Four steps of a tiny model, in a folder where all paths are relative.
class Workplace {
 public:
  Workplace() {
    fs::create_directories(path("in"));
    std::ofstream text(path("in/text"));
    for (int line = 0; line < 2000; ++line) {
      text << "some words " << line * 7919 % 1000 << " to learn\n";
    }
    std::ofstream(path("config.json")) << R"({
  "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
  "model": {"model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64},
  "data": {"train": "pieces/train", "sequence_length": 32},
  "training": {"steps": 4, "device": "cpu", "output_dir": "run"}
})";
  }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  [[nodiscard]] Ended run_dstrain(std::vector<std::string> arguments,
                                  const std::string& from = ".") const {
    arguments.insert(arguments.begin(), fs::absolute(testing::dstrain_binary()).string());
    const std::string folder = path(from);
    Program program(std::move(arguments), {{"DSTRAIN_THREADS", "1"}}, [&] {
      if (::chdir(folder.c_str()) != 0) _exit(126);
    });
    const auto code = program.wait(kPatience);
    REQUIRE(code.has_value());
    return {*code, program.out(), program.err()};
  }
  void prepare(const std::string& output, const std::vector<std::string>& how) const {
    std::vector<std::string> arguments{"prepare-data", "--input",      "in", "--output",
                                       output,         "--validation", "0"};
    arguments.insert(arguments.end(), how.begin(), how.end());
    REQUIRE(run_dstrain(std::move(arguments)).exit_code == 0);
  }
  [[nodiscard]] std::map<std::string, fs::file_time_type> times(const std::string& name) const {
    std::map<std::string, fs::file_time_type> found;
    for (const auto& entry : fs::recursive_directory_iterator(path(name)))
      found[entry.path()] = entry.last_write_time();
    return found;
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_CASE("launch says what a run starts from, and refuses what does not belong together",
          "[cmd][launch]") {
  if (testing::no_dstrain_here()) return;
  const Workplace place;
  place.prepare("pieces", {"--train-sentencepiece", "300"});
  place.prepare("bytes", {});
  const Ended trained = place.run_dstrain({"launch", "config.json"});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);

  // All steps are done: nothing is, and nothing is touched, by launch or by a rank of its own.
  const auto before = place.times("run");
  for (const char* command : {"launch", "train"}) {
    const Ended again = place.run_dstrain({command, "config.json"});
    CHECK(again.exit_code == 0);
    CHECK_THAT(again.err, Contains("nothing to do: run/checkpoints/step-00000004 has 4 of 4") &&
                              Contains("--set training.steps=8") && !Contains("error"));
  }
  CHECK(place.times("run") == before);

  // The same table by --check and by rank 0.
  const std::vector<std::string> changed{
      "launch", "config.json",      "--num_gpus", "2",
      "--set",  "training.steps=5", "--set",      "optimizer.params.lr=5e-4"};
  std::vector<std::string> check = changed;
  check.insert(check.end(), {"--check", "--offline"});
  const Ended checked = place.run_dstrain(check);
  CHECK(checked.exit_code == 0);
  CHECK_THAT(checked.err, Contains("would resume step 4 of run/checkpoints/step-00000004") &&
                              Contains("optimizer.params.lr          0.001 → 0.0005"));
  CHECK(place.times("run") == before);

  // Data of another tokenizer than the checkpoint's, before any rank is started.
  std::vector<std::string> mixed = changed;
  mixed.insert(mixed.end(), {"--set", "data.train=bytes/train"});
  for (const bool only_check : {true, false}) {
    std::vector<std::string> arguments = mixed;
    if (only_check) arguments.insert(arguments.end(), {"--check", "--offline"});
    const Ended refused = place.run_dstrain(arguments);
    CHECK(refused.exit_code == 2);
    CHECK_THAT(refused.err, Contains("bytes/dataset.json") && Contains("hash ") &&
                                Contains("--allow-tokenizer-mismatch"));
    CHECK(refused.err.find("hash ") == refused.err.rfind("hash "));  // told once
  }
  CHECK(place.times("run") == before);
  CHECK(place
            .run_dstrain({"train", "config.json", "--set", "training.steps=5", "--set",
                          "data.train=bytes/train"})
            .exit_code == 2);
  mixed.emplace_back("--allow-tokenizer-mismatch");
  const Ended allowed = place.run_dstrain(mixed);
  CHECK(allowed.exit_code == 0);
  CHECK_THAT(allowed.err, Contains("warning: data.train: the ids of bytes/train") &&
                              Contains("resumed at step 4") &&
                              Contains("ranks                        1 ") &&
                              Contains("→ bytes (256 ids)"));
}

TEST_CASE("generate and convert-checkpoint need nothing but the run's folder, from any folder",
          "[cmd][generate]") {
  if (testing::no_dstrain_here()) return;
  const Workplace place;
  place.prepare("pieces", {"--train-sentencepiece", "300"});
  place.prepare("bytes", {"--append-eod", "256"});
  for (const std::string data : {"pieces", "bytes"}) {
    INFO(data);
    REQUIRE(place
                .run_dstrain({"train", "config.json", "--set", "data.train=" + data + "/train",
                              "--set", "training.output_dir=runs/" + data})
                .exit_code == 0);
    fs::create_directories(place.path("far/away"));
    fs::rename(place.path("runs/" + data), place.path("far/" + data));
    fs::rename(place.path(data), place.path("hidden-" + data));

    const Ended text = place.run_dstrain({"generate", "--checkpoint", "../" + data, "--prompt",
                                          "some", "--max-tokens", "3", "--json"},
                                         "far/away");
    INFO(text.err);
    CHECK(text.exit_code == 0);
    CHECK_THAT(text.out, Contains(data == "bytes" ? "\"tokenizer\": \"bytes\"" : "sentencepiece:"));
    const Ended converted = place.run_dstrain(
        {"convert-checkpoint", "--from", "../" + data, "--to", "exported-" + data}, "far/away");
    INFO(converted.err);
    CHECK(converted.exit_code == 0);
    const Ended again = place.run_dstrain({"generate", "--checkpoint", "far/away/exported-" + data,
                                           "--prompt", "some", "--max-tokens", "3"});
    INFO(again.err);
    CHECK(again.exit_code == 0);
  }
  std::ifstream model(place.path("hidden-pieces/tokenizer.model"), std::ios::binary);
  std::ifstream exported(place.path("far/away/exported-pieces/tokenizer.model"), std::ios::binary);
  using Bytes = std::istreambuf_iterator<char>;
  const std::string expected{Bytes(model), Bytes()};
  CHECK_FALSE(expected.empty());
  CHECK(std::string{Bytes(exported), Bytes()} == expected);

  // Weights of pieces do not go on with bytes.
  fs::rename(place.path("hidden-bytes"), place.path("bytes"));
  const Ended refused =
      place.run_dstrain({"launch", "config.json", "--set", "data.train=bytes/train", "--set",
                         "model=far/away/exported-pieces", "--set", "training.output_dir=new"});
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Contains("model.initial_weights") &&
                              Contains("far/away/exported-pieces/tokenizer.model") &&
                              Contains("bytes/dataset.json"));
}

}  // namespace
}  // namespace dstrain
