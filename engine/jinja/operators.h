// Python's operators on the values of a template. All of them throw TemplateError where Python
// raises an exception.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/jinja/value.h"

namespace dstrain::jinja {

/// Texts, and what a rendering writes, are no longer than this, so that no template takes all
/// memory.
inline constexpr std::size_t kLongestText = std::size_t{1} << 26;
/// Throws TemplateError where that is passed.
void check_length(std::size_t bytes);

/// Less than 0, 0 or more than 0. Numbers with numbers, strings with strings, sequences by their
/// elements.
[[nodiscard]] int compare(const Value& a, const Value& b);
/// `part in whole`.
[[nodiscard]] bool contains(const Value& whole, const Value& part);

[[nodiscard]] Value add(const Value& a, const Value& b);
[[nodiscard]] Value subtract(const Value& a, const Value& b);
[[nodiscard]] Value multiply(const Value& a, const Value& b);
[[nodiscard]] Value divide(const Value& a, const Value& b);
[[nodiscard]] Value divide_whole(const Value& a, const Value& b);
/// Of strings: printf's formatting.
[[nodiscard]] Value remainder(const Value& a, const Value& b);
[[nodiscard]] Value power(const Value& a, const Value& b);
[[nodiscard]] Value negate(const Value& a);

/// `value.name`: methods and attributes come first, then members of that name.
[[nodiscard]] Value attribute(const Value& value, const std::string& name);
/// `value[key]`: members come first, then, for a string, methods and attributes of that name.
[[nodiscard]] Value subscript(const Value& value, const Value& key);
/// `value[begin:end:step]`.
[[nodiscard]] Value slice(const Value& value,
                          const Value& begin,
                          const Value& end,
                          const Value& step);

/// A method of strings, lists or dictionaries, bound to its value; nothing where there is none.
[[nodiscard]] std::optional<Value> method(const Value& value, std::string_view name);

/// `format % arguments`, with %s, %r, %d, %i, %f, %e, %g, %x, %o, %c and %%.
[[nodiscard]] std::string format_printf(const std::string& format, const Value& arguments);

}  // namespace dstrain::jinja
