// Writes the tokenizers that our token files are made with as transformers loads them, so that it
// makes the same ids of a text.
#pragma once

#include <string>
#include <string_view>

namespace dstrain {

/// tokenizer_config.json beside a SentencePiece model.
std::string sentencepiece_config(std::string_view model);

/// tokenizer.json of "bytes": byte b is id b.
std::string byte_tokenizer();
/// tokenizer_config.json beside a tokenizer.json that says everything itself.
std::string plain_tokenizer_config();

}  // namespace dstrain
