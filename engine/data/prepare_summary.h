// PrepareSummary: what prepare_data made, and what it left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/sample_encoder.h"
#include "engine/config/tokenizer_identity.h"

namespace dstrain {

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
  struct Samples {
    std::string kind{};           ///< "conversations", "pairs", "rated answers"; else empty
    std::string chat_template{};  ///< the file it came from
    std::int64_t lines = 0;       ///< that made samples
    std::int64_t trained_tokens = 0;
    SampleNotes notes{};
  };
  Samples samples{};  ///< of fine-tuning data
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
  std::int64_t bad_lines = 0;                  ///< of JSON lines, skipped
  std::vector<std::string> bad_lines_named{};  ///< "FILE:LINE: why", of the first kMostNamed
  static constexpr std::size_t kMostNamed = 1000;
  std::vector<std::string> unreadable;  ///< path and reason
  double seconds = 0.0;
};

/// The summary as it is written to PREFIX/dataset.json.
std::string to_json(const PrepareSummary& summary);

}  // namespace dstrain
