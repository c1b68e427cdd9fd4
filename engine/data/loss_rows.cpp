#include "engine/data/loss_rows.h"

#include <algorithm>

#include "engine/data/documents.h"
#include "kernels/core/check.h"
#include "kernels/ignored_target.h"

namespace dstrain {

std::int64_t LossRows::choose(std::span<const std::int32_t> targets) const {
  const std::int64_t tokens = std::ssize(targets);
  check(tokens > 0 && std::ssize(rows_N) == tokens && std::ssize(places_N) == tokens &&
            std::ssize(targets_N) == tokens,
        "rows of a loss head with room for {}, {} and {} of {} tokens", rows_N.size(),
        places_N.size(), targets_N.size(), tokens);
  const std::int64_t unit = (tokens + kSizes - 1) / kSizes;
  const std::int64_t counted = std::max<std::int64_t>(1, count_targets(targets));
  const std::int64_t size = std::min((counted + unit - 1) / unit * unit, tokens);
  std::fill(places_N.begin(), places_N.end(), -1);
  std::int64_t place = 0;
  const auto take = [&](bool that_count) {
    for (std::int64_t token = 0; token < tokens && place < size; ++token) {
      const auto at = static_cast<std::size_t>(token);
      if ((targets[at] != kIgnoredTarget) != that_count) continue;
      rows_N[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(token);
      targets_N[static_cast<std::size_t>(place)] = targets[at];
      places_N[at] = static_cast<std::int32_t>(place++);
    }
  };
  take(true);
  take(false);
  return size;
}

}  // namespace dstrain
