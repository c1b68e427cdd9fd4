// Configs for tests: written to a file of their own, loaded, and their errors caught as text.
#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "engine/config/config_error.h"
#include "engine/config/config_json.h"

namespace dstrain {

/// A folder that is removed with the test; the working folder stays as it is.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> counter = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("dstrain_spec_" + std::to_string(getpid()) + "_" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::string path() const { return path_.string(); }
  std::string write(const std::string& name, std::string_view text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

/// The sentences of the ConfigError that `action` throws, one a line; "" if it throws none.
inline std::string config_error_of(const std::function<void()>& action) {
  std::string text;
  try {
    action();
  } catch (const ConfigError& error) {
    for (const ConfigProblem& problem : error.problems()) {
      text += (text.empty() ? "" : "\n") + sentence_of(problem);
    }
  }
  return text;
}

inline LoadedConfig load_text(std::string_view text, const LoadOptions& options = {}) {
  const TemporaryFolder folder;
  return load_config(folder.write("run.json", text), options);
}

/// The problems of a config text, with the folder's name taken away: "run.json:3:5: …".
inline std::vector<ConfigProblem> problems_of_text(std::string_view text,
                                                   const LoadOptions& options = {}) {
  const TemporaryFolder folder;
  const std::string file = folder.write("run.json", text);
  std::vector<ConfigProblem> problems;
  try {
    load_config(file, options);
  } catch (const ConfigError& error) {
    problems = error.problems();
  }
  const std::string prefix = folder.path() + "/";
  for (ConfigProblem& problem : problems) {
    for (std::string* part : {&problem.where, &problem.message}) {
      for (auto at = part->find(prefix); at != std::string::npos; at = part->find(prefix)) {
        part->erase(at, prefix.size());
      }
    }
  }
  return problems;
}

/// The sentence of the first of them, since a text that is only a part of a config lacks other
/// things.
inline std::string error_of_text(std::string_view text, const LoadOptions& options = {}) {
  const std::vector<ConfigProblem> problems = problems_of_text(text, options);
  return problems.empty() ? "" : sentence_of(problems.front());
}

/// A whole, small, valid config. Tests change it with --set.
inline constexpr std::string_view kTinyConfig = R"({
  "train_batch_size": 8,
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-3 } },
  "model": {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128
  },
  "data": { "train": "data/train", "validation": "data/validation" },
  "training": { "steps": 10, "output_dir": "runs/tiny" }
})";

inline LoadedConfig load_tiny(const std::vector<std::string>& overrides) {
  return load_text(kTinyConfig, {.overrides = overrides});
}

/// The sentences of all problems, one a line.
inline std::string error_of_tiny(const std::vector<std::string>& overrides) {
  std::string text;
  for (const ConfigProblem& problem : problems_of_text(kTinyConfig, {.overrides = overrides})) {
    text += (text.empty() ? "" : "\n") + sentence_of(problem);
  }
  return text;
}

inline std::string origin_of(const LoadedConfig& loaded, const std::string& path) {
  for (const ConfigValue& value : loaded.values) {
    if (value.path == path) return value.origin;
  }
  return "";
}

inline std::string value_of_path(const LoadedConfig& loaded, const std::string& path) {
  for (const ConfigValue& value : loaded.values) {
    if (value.path == path) return value.value;
  }
  return "";
}

}  // namespace dstrain
