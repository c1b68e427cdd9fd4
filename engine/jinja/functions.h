// The filters, tests and functions that a template may name.
#pragma once

#include <string_view>

#include "engine/jinja/value.h"

namespace dstrain::jinja {

using Filter = Value (*)(const Value& input, const Arguments& arguments);
/// The filter of that name, or nullptr.
[[nodiscard]] Filter find_filter(std::string_view name);

using Test = bool (*)(const Value& value, const Arguments& arguments);
[[nodiscard]] Test find_test(std::string_view name);

/// The function of that name that every template has (range, namespace, dict, joiner, cycler,
/// raise_exception, strftime_now), or nullptr.
[[nodiscard]] const Value* find_function(std::string_view name);

/// A function of a template's, made of one of C++.
[[nodiscard]] Value make_function(std::string_view name, Value (*call)(const Arguments&));

/// Sets an attribute of what namespace() made. Throws TemplateError for anything else.
void set_attribute(const Value& value, const std::string& name, Value to);

}  // namespace dstrain::jinja
