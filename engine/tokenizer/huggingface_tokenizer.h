// The tokenizer that a Hugging Face tokenizer.json describes. A text goes
//
//   added tokens → normalizer → added tokens → pre-tokenizer → model → ids
//
// and ids come back through the decoder, each as the file says.
#pragma once

#include <memory>
#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace dstrain {

/// Names of tokens that files beside tokenizer.json give; empty: they do not.
struct TextLimitTokens {
  std::string beginning{};
  std::string end{};
};

/// `json` is the file's content, `name` what errors call it. Throws a ConfigError that names the
/// component that is wrong or not known.
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const std::string& json,
                                                      const std::string& name,
                                                      const TextLimitTokens& limits = {});

}  // namespace dstrain
