#include "engine/config/tensor_rates.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include <fnmatch.h>

namespace dstrain {
namespace {

constexpr std::string_view kBlocks = "blocks.";

/// The embedding's is 0; the final norm's and the head's is blocks + 1.
std::int64_t layer_of(const std::string& tensor, std::int64_t blocks) {
  if (tensor.starts_with("embedding.")) return 0;
  std::int64_t block = blocks;
  if (tensor.starts_with(kBlocks)) {
    std::from_chars(tensor.data() + kBlocks.size(), tensor.data() + tensor.size(), block);
  }
  return block + 1;
}

}  // namespace

bool RateScale::covers(const std::string& tensor) const {
  return fnmatch(pattern.c_str(), tensor.c_str(), 0) == 0;
}

double TensorRates::of(const std::string& tensor, std::int64_t blocks) const {
  double rate = std::pow(layer_decay, static_cast<double>(blocks + 1 - layer_of(tensor, blocks)));
  for (const RateScale& scale : scales) {
    if (scale.covers(tensor)) rate *= scale.scale;
  }
  return rate;
}

}  // namespace dstrain
