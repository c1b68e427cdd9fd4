// What Python's strings can do, for the methods and the filters of templates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/jinja/value.h"

namespace dstrain::jinja {

enum class Side : std::uint8_t { kLeft, kRight, kBoth };

/// str.strip(characters); white space where none are named.
[[nodiscard]] std::string stripped(std::string_view text,
                                   const std::optional<std::string>& characters,
                                   Side side);
/// str.split and str.rsplit; by runs of white space where no separator is named. `most` < 0: all.
[[nodiscard]] Value split(const std::string& text,
                          const std::optional<std::string>& separator,
                          std::int64_t most,
                          Side from);
/// str.replace; `most` < 0: all.
[[nodiscard]] std::string replaced(std::string_view text,
                                   std::string_view old,
                                   std::string_view by,
                                   std::int64_t most);
[[nodiscard]] std::string upper(std::string_view text);
[[nodiscard]] std::string lower(std::string_view text);
[[nodiscard]] std::string capitalized(std::string_view text);
/// The separator between the elements, each of which must be a string.
[[nodiscard]] std::string join_strings(std::string_view separator, const Value& elements);

}  // namespace dstrain::jinja
