#include "engine/tokenizer/token_model.h"

#include <fmt/format.h>

namespace dstrain {

std::unique_ptr<TokenModel> TokenModel::make(const JsonPart& part, Pieces pieces) {
  // Old files leave the type out; the keys that are present show which one it is.
  const bool has_merges = part.find("merges").has_value();
  const std::string type = part.text_or("type", has_merges ? "BPE" : "Unigram");
  if (type == "BPE") {
    return make_bpe_model(part, pieces);
  }
  if (type == "Unigram") {
    return make_unigram_model(part, pieces);
  }
  part["type"].fail(
      fmt::format("model \"{}\" is not supported; those supported are BPE and Unigram", type));
}

}  // namespace dstrain
