// BpeTraining: the byte-level BPE tokenizer that prepare_data is asked to make of its text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dstrain {

struct BpeTraining {
  std::int64_t vocab_size = 0;
  std::string split = "gpt4";                  ///< as split_expression takes it
  std::string document_end = "<|endoftext|>";  ///< a special token behind each document; "": none

  /// The special tokens, in the order of their ids.
  [[nodiscard]] std::vector<std::string> specials() const;
};

/// The expression of a named split, "gpt2", "gpt4", "gpt4o" or "qwen2"; that of GPT-2's, for which
/// a tokenizer.json has a switch, is empty. Anything else must be a regular expression itself.
/// Throws ConfigError.
std::string split_expression(const std::string& name);

/// Throws ConfigError if no such tokenizer can be made of any text.
void check_bpe_training(const BpeTraining& training);

}  // namespace dstrain
