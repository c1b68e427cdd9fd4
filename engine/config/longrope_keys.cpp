#include "engine/config/longrope_keys.h"

#include <cmath>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "engine/config/arch/family.h"
#include "engine/config/rope_block.h"

namespace dstrain {
namespace {

constexpr const char* kOriginal = "original_max_position_embeddings";

/// Phi-3 has a key for them beside the block, which then counts, and whose default does too.
std::int64_t original_positions(const ConfigDraft& draft,
                                const WrittenKeys& written,
                                const std::string& path) {
  const ModelSpec& model = draft.config.model;
  const std::int64_t in_block = model.rope_scaling.original_max_positions;
  const std::int64_t beside =
      draft.original_positions.value_or(family_of(model).default_original_positions);
  if (in_block > 0 && beside > 0 && in_block != beside) {
    throw_config_error(
        written.where(path), fmt::format("{}.{}", path, kOriginal),
        fmt::format("{} contradicts model.{} {}{}", in_block, kOriginal, beside,
                    draft.original_positions ? ": leave one out"
                                             : ", which is the family's where it is not written"));
  }
  const std::int64_t positions = beside > 0 ? beside : in_block;
  if (positions < 2) {
    throw_config_error(written.where(path), path,
                       positions == 0
                           ? fmt::format("\"{}\" is missing", kOriginal)
                           : fmt::format("{} must be at least 2, found {}", kOriginal, positions));
  }
  return positions;
}

}  // namespace

RopeScaling read_longrope(const std::string& path, const JsonNode& node) {
  return {.kind = RopeScalingKind::kLongRope,
          .factor = positive_or(path, node, "factor", 0.0),
          .original_max_positions = std::llround(positive_or(path, node, kOriginal, 0.0)),
          .attention_factor = positive_or(path, node, "attention_factor", 0.0),
          .short_factors = positive_list(path, node, "short_factor"),
          .long_factors = positive_list(path, node, "long_factor")};
}

void finish_longrope(ConfigDraft& draft, const WrittenKeys& written, const std::string& path) {
  ModelSpec& model = draft.config.model;
  RopeScaling& scaling = model.rope_scaling;
  scaling.original_max_positions = original_positions(draft, written, path);
  const auto pairs = static_cast<std::size_t>(model.rotated_dims() / 2);
  for (const auto& [name, factors] : {std::pair("short_factor", &scaling.short_factors),
                                      std::pair("long_factor", &scaling.long_factors)}) {
    if (factors->size() != pairs) {
      throw_config_error(written.where(path), fmt::format("{}.{}", path, name),
                         fmt::format("must have {} numbers, one for each pair of a head's that are "
                                     "rotated, found {}",
                                     pairs, factors->size()));
    }
  }
  const auto original = static_cast<double>(scaling.original_max_positions);
  if (scaling.factor == 0.0) scaling.factor = static_cast<double>(model.max_positions) / original;
  if (scaling.attention_factor == 0.0) {
    scaling.attention_factor = scaling.factor <= 1.0
                                   ? 1.0
                                   : std::sqrt(1.0 + std::log(scaling.factor) / std::log(original));
  }
}

std::string longrope_json(const RopeScaling& scaling) {
  return fmt::format(
      R"({{"rope_type": "longrope", "factor": {}, "{}": {}, "attention_factor": {}, )"
      R"("short_factor": [{}], "long_factor": [{}]}})",
      scaling.factor, kOriginal, scaling.original_max_positions, scaling.attention_factor,
      fmt::join(scaling.short_factors, ", "), fmt::join(scaling.long_factors, ", "));
}

}  // namespace dstrain
