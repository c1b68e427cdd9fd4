#include "engine/train/objective/next_token.h"

#include <algorithm>

#include "kernels/core/plain_nan.h"

namespace dstrain {

double NextTokenObjective::mean_loss(double loss_sum, std::int64_t counted) const {
  return plain_nan(loss_sum / static_cast<double>(std::max<std::int64_t>(counted, 1)));
}

}  // namespace dstrain
