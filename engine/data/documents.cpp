#include "engine/data/documents.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "kernels/core/check.h"
#include "kernels/ignored_target.h"

namespace dstrain {

DocumentRules document_rules(const DataConfig& data) {
  return {.end = data.end_of_document.value_or(-1),
          .attention = data.document_attention,
          .masks_borders = data.mask_document_ends && !data.samples,
          .are_packed = data.pack != DocumentPack::kNone || data.samples,
          .are_samples = data.samples};
}

const DataConfig& require_document_end(const DataConfig& data) {
  if ((data.document_attention || data.mask_document_ends) && !data.samples &&
      !data.end_of_document) {
    throw ConfigError(fmt::format(
        "data.end_of_document: not written, and nothing beside {} says which token ends a document "
        "(prepare-data --append-eod leaves word of it in dataset.json): write its id",
        data.train.front().prefix));
  }
  return data;
}

void find_document_positions(std::span<const std::int32_t> ids,
                             std::int64_t sequence_T,
                             std::int32_t end,
                             std::span<std::int32_t> positions) {
  const auto T = static_cast<std::size_t>(sequence_T);
  check(ids.size() == positions.size() && ids.size() % T == 0,
        "{} ids and {} positions for sequences of {}", ids.size(), positions.size(), T);
  std::int32_t position = 0;
  for (std::size_t n = 0; n < ids.size(); ++n) {
    position = n % T == 0 ? 0 : position;
    positions[n] = position;
    position = ids[n] == end ? 0 : position + 1;
  }
}

void take_document_ends(std::span<std::int32_t> targets,
                        std::int64_t sequence_T,
                        std::span<std::int32_t> positions) {
  const auto T = static_cast<std::size_t>(sequence_T);
  std::int32_t position = 0;
  for (std::size_t n = 0; n < targets.size(); ++n) {
    position = n % T == 0 ? 0 : position;
    if (!positions.empty()) positions[n] = position;
    const bool is_last = targets[n] == kLastOfDocument;
    position = is_last ? 0 : position + 1;
    if (is_last) targets[n] = kIgnoredTarget;
  }
}

void ignore_targets_behind(std::int32_t end,
                           std::span<const std::int32_t> inputs,
                           std::span<std::int32_t> targets) {
  check(inputs.size() == targets.size(), "{} inputs and {} targets", inputs.size(), targets.size());
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (inputs[n] == end) {
      targets[n] = kIgnoredTarget;
    }
  }
}

std::int64_t count_targets(std::span<const std::int32_t> targets) {
  return std::ssize(targets) - std::count(targets.begin(), targets.end(), kIgnoredTarget);
}

}  // namespace dstrain
