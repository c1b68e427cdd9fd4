// The ids that a tokenizer.json puts around those of a text: a beginning of text, an end, or
// neither.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/tokenizer/json_part.h"

namespace dstrain {

struct AroundText {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
};

/// Reads them for a single text, as the file's "post_processor" gives them. Throws a ConfigError
/// that names a kind that is not known.
AroundText around_text(const std::optional<JsonPart>& post_processor);

}  // namespace dstrain
