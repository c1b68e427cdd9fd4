// The layout (ranks = tensor-parallel size × pipeline stages × data-parallel size) nearest to one
// that is impossible. It satisfies at once all that the model, the optimizer, the batch and the
// other blocks ask, where correcting one rule at a time may break the next. It serves error
// messages; nothing is changed behind the user's back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/config.h"

namespace dstrain {

struct Layout {
  std::int64_t tensor = 1;  ///< tensor_parallel.size
  std::int64_t stages = 1;  ///< pipeline.stages
  std::int64_t ranks = 1;   ///< all of them

  bool operator==(const Layout&) const = default;
};

/// Returns why tensor-parallel groups of this size cannot hold the model; "" if they can.
std::string objection_to_size(const ModelSpec& model, std::int64_t size);

/// `config.batch` is as written: what resolve_config() would derive is empty. The number of ranks
/// stays or goes to the next multiple on either side. Returns nothing if no such layout is
/// possible.
std::optional<Layout> nearest_layout(const Config& config, std::int64_t ranks);

/// "; nearest layout that would do: --set … on 64 ranks", to end an error with. "" where the layout
/// that is asked for breaks no rule, or where the layout is not to blame.
std::string layout_advice(const Config& config, std::int64_t ranks);

}  // namespace dstrain
