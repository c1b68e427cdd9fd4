// TinyRun: a config and data for a model so small that steps take a millisecond, and `dstrain` on
// it. The run is so long that it never ends by itself.
#pragma once

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/harness/program.h"

namespace dstrain::testing {

class TinyRun {
 public:
  TinyRun() {
    std::ofstream text(path("text"));
    for (int i = 0; i < 2000; ++i)
      text << "line " << i << " of a text to learn by heart\n";
    text.close();
    Program prepare({dstrain_binary(), "prepare-data", "--input", path("text"), "--output",
                     path("data"), "--tokenizer", "bytes", "--validation", "0"});
    if (prepare.wait(std::chrono::seconds{30}) != 0) {
      throw std::runtime_error(dstrain_binary() + " prepare-data failed: " + prepare.err());
    }
    std::ofstream(path("config.json")) << R"({
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
  "steps_per_print": 1,
  "model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "max_position_embeddings": 64, "tie_word_embeddings": true},
  "data": {"train": ")" << path("data/train")
                                       << R"(", "sequence_length": 32},
  "training": {"steps": 1000000, "device": "cpu", "output_dir": ")"
                                       << path("run") << R"("}
})";
  }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  [[nodiscard]] std::string read(const std::string& name) const { return folder_.read(name); }

  /// Arguments of `dstrain launch` with two ranks, and more.
  [[nodiscard]] std::vector<std::string> launch(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv = {dstrain_binary(), "launch", "--num_gpus", "2",
                                     path("config.json")};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }

  /// Lines of metrics.jsonl: steps done.
  [[nodiscard]] std::int64_t steps() const {
    const std::string text = read("run/metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }
  [[nodiscard]] bool reaches_step(std::int64_t step) const {
    return becomes_true([&] { return steps() >= step; }, std::chrono::seconds{30});
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace dstrain::testing
