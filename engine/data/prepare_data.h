// prepare_data: files of text → PREFIX/train.{bin,idx} and PREFIX/validation.{bin,idx}, Megatron's
// format, one document a file, with the tokenizer's model beside them. The input streams through:
// what is in memory is a few MiB for each thread and a few hundred bytes for each file. Files that
// are not text or that repeat another are left out; input that holds text in another form (JSON,
// archives, Parquet) is refused. Either all of the output appears, at the end, or none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/tokenizer_identity.h"

namespace dstrain {

struct PrepareOptions {
  std::vector<std::string> input{};                   ///< files and folders
  std::vector<std::string> validation_input{};        ///< if any: these, instead of a random split
  std::string output{};                               ///< the folder that the files go to
  std::string tokenizer = "bytes";                    ///< or sentencepiece:MODEL
  std::optional<std::int64_t> train_sentencepiece{};  ///< vocabulary of a model to be made first
  std::optional<std::int32_t> append_eod{};           ///< id behind every document
  double validation = 0.05;                           ///< share of the bytes, by whole files
  std::uint64_t seed = 1234;                          ///< of the split
  std::vector<std::string> extensions{};              ///< with their dot; empty: all
  std::vector<std::string> exclude{};                 ///< shell patterns (InputSelection)
  std::vector<std::string> as_text{};                 ///< of JSON: "json", "jsonl", …
  bool deduplicate = true;                            ///< skip files equal to an earlier one
  bool overwrite = false;                             ///< replace an earlier output
  int threads = 0;                                    ///< of a slow tokenizer; 0: all cores
};

struct PreparedSplit {
  std::string prefix;  ///< what data.train or data.validation of a config is set to
  std::int64_t documents = 0;
  std::int64_t text_bytes = 0;
  std::int64_t tokens = 0;
  std::int64_t bin_bytes = 0;
  std::string content{};  ///< a hash of all ids (MegatronWriter::content)
};

struct PrepareSummary {
  std::string tokenizer;
  std::int64_t vocab_size = 0;  ///< what model.vocab_size has to be, at least
  TokenizerIdentity identity;   ///< of the tokenizer; what travels with the ids
  std::string token_type;
  std::optional<std::int32_t> append_eod;  ///< id behind every document
  PreparedSplit train;
  std::optional<PreparedSplit> validation;
  std::int64_t files_found = 0;
  std::int64_t duplicates = 0;
  std::int64_t binary = 0;
  std::int64_t empty = 0;
  std::int64_t hidden = 0;
  std::int64_t folder_links = 0;
  std::int64_t special = 0;
  std::int64_t excluded = 0;
  std::vector<std::string> unreadable;  ///< path and reason
  double seconds = 0.0;
};

/// Tells a watcher how far it is. It is called often, and the callee decides what to show.
struct PrepareProgress {
  enum class Phase : std::uint8_t { kFinding, kTraining, kEncoding, kFinishing };
  Phase phase = Phase::kFinding;
  std::int64_t bytes_done = 0;
  std::int64_t bytes_total = 0;
  std::int64_t files_done = 0;
  std::int64_t files_total = 0;
};

struct PrepareHooks {
  std::function<void(const PrepareProgress&)> on_progress = [](const PrepareProgress&) {};
  std::function<bool()> stop_requested = [] { return false; };
};

/// Returns nothing if it was stopped on request, and has left nothing behind then. Throws
/// ConfigError and DiskError.
std::optional<PrepareSummary> prepare_data(const PrepareOptions& options,
                                           const PrepareHooks& hooks);

/// The summary as it is written to PREFIX/dataset.json.
std::string to_json(const PrepareSummary& summary);

}  // namespace dstrain
