#include "engine/config/arch/family.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace dstrain {

const std::vector<Family>& families() {
  static const std::vector<Family> all = {gpt2_family(),  llama_family(), mistral_family(),
                                          qwen2_family(), qwen3_family(), olmo2_family()};
  return all;
}

const Family& family_of(const std::string& model_type) {
  const auto found = std::find_if(families().begin(), families().end(), [&](const Family& family) {
    return family.model_type() == model_type;
  });
  check(found != families().end(), "there is no family \"{}\"", model_type);
  return *found;
}

}  // namespace dstrain
