// PrepareOptions: what is asked of prepare_data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/sample_encoder.h"
#include "engine/data/bpe_request.h"

namespace dstrain {

/// The names of the files that may be in the output folder at the end.
inline constexpr const char* kOutputNames[] = {"train.bin",      "train.idx",
                                               "train.hashes",   "validation.bin",
                                               "validation.idx", "validation.hashes",
                                               "dataset.json",   "tokenizer.model",
                                               "tokenizer.json", "tokenizer_config.json"};

struct PrepareOptions {
  std::vector<std::string> input{};                   ///< files and folders
  std::vector<std::string> validation_input{};        ///< if any: these, instead of a random split
  std::string output{};                               ///< the folder that the files go to
  std::string tokenizer = "bytes";                    ///< as TokenizerSource::find takes it
  std::optional<std::int64_t> train_sentencepiece{};  ///< vocabulary of a model to be made first
  std::optional<BpeTraining> train_bpe{};             ///< … or of a tokenizer.json
  std::optional<std::int32_t> append_eod{};           ///< id behind every document
  double validation = 0.05;                           ///< share of the bytes, by whole documents
  std::uint64_t seed = 1234;                          ///< of the split
  std::vector<std::string> extensions{};              ///< with their dot; empty: all
  std::vector<std::string> exclude{};                 ///< shell patterns (InputSelection)
  std::vector<std::string> as_text{};                 ///< of JSON: "json", "jsonl", …
  std::optional<std::string> field{};                 ///< of JSON lines (JsonField); else "text"
  enum class OnBadLine : std::uint8_t { kStop, kSkip };
  OnBadLine on_bad_line = OnBadLine::kStop;  ///< what a JSON line without such a text means
  bool chat = false;            ///< JSON lines are conversations, pairs, … (ChatExample)
  std::string chat_template{};  ///< of those: a file or folder; empty: the tokenizer's folder
  std::vector<std::string> stop_tokens{};  ///< texts that end an answer, besides the model's own
  SampleEncoder::Settings samples{};
  std::int64_t longest_line = std::int64_t{64} << 20;  ///< bytes; a longer one is a bad line
  bool deduplicate = true;                             ///< skip documents equal to an earlier one
  bool overwrite = false;                              ///< replace an earlier output
  int threads = 0;                                     ///< that parse and encode; 0: all cores
};

/// Throws ConfigError, also where there is an earlier output that must not be replaced.
void check_options(const PrepareOptions& options);

/// The flags that decide what given files yield, and their values as text; a named tokenizer is not
/// among them, as its file decides.
std::map<std::string, std::string> deciding_flags(const PrepareOptions& options);

}  // namespace dstrain
