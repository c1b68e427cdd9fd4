#include "engine/config/arch/family.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace dstrain {

const std::vector<Family>& families() {
#define DSTRAIN_FAMILY(name) name##_family(),
  static const std::vector<Family> all = {
#include "engine/config/arch/families.inc"
  };
#undef DSTRAIN_FAMILY
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
