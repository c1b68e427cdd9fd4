#include "engine/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/printf.h>

#include "engine/jinja/characters.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain::jinja {
namespace {

[[noreturn]] void refuse(std::string_view operation, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) throw TemplateError(value->why_undefined());
  }
  throw TemplateError(fmt::format("cannot {} {} and {}", operation, a.kind(), b.kind()));
}

/// Of two whole numbers, checked: Python's never overflow.
template <typename Operation>
Value whole_result(Operation operation, const Value& a, const Value& b, const char* name) {
  std::int64_t result = 0;
  if (operation(a.whole(), b.whole(), &result)) {
    throw TemplateError(
        fmt::format("the {} of {} and {} has more than 64 bits", name, a.whole(), b.whole()));
  }
  return result;
}

Value repeated(const Value& value, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  const std::size_t size = value.is_string() ? value.string().size() : value.items().size();
  if (size > 0) check_length(count > kLongestText / size ? kLongestText + 1 : count * size);
  if (value.is_string()) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
      text += value.string();
    }
    return text;
  }
  Items items;
  for (std::size_t i = 0; i < count; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.is_list() ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

void refuse_zero(const Value& divisor) {
  if (divisor.real() == 0.0) throw TemplateError("a division by zero");
}

std::string missing(const Value& value, std::string_view name) {
  return fmt::format("{} has no \"{}\"", value.kind(), name);
}

}  // namespace

void check_length(std::size_t bytes) {
  if (bytes > kLongestText) {
    throw TemplateError(fmt::format("a text of more than {} MiB", kLongestText >> 20U));
  }
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) {
      return a.whole() < b.whole() ? -1 : a.whole() > b.whole() ? 1 : 0;
    }
    return a.real() < b.real() ? -1 : a.real() > b.real() ? 1 : 0;
  }
  if (a.is_string() && b.is_string()) return a.string().compare(b.string());
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    const std::size_t both = std::min(a.items().size(), b.items().size());
    for (std::size_t i = 0; i < both; ++i) {
      if (!equal(a.items()[i], b.items()[i])) return compare(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size() ? 1 : 0;
  }
  refuse("compare", a, b);
}

bool contains(const Value& whole, const Value& part) {
  if (whole.is_string()) {
    if (!part.is_string()) refuse("look for one in the other:", part, whole);
    return whole.string().find(part.string()) != std::string::npos;
  }
  if (whole.is_dict()) return whole.find(part) != nullptr;
  if (whole.is_undefined()) return false;
  if (!whole.is_sequence()) refuse("look for one in the other:", part, whole);
  return std::any_of(whole.items().begin(), whole.items().end(),
                     [&](const Value& item) { return equal(item, part); });
}

Value add(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    check_length(a.string().size() + b.string().size());
    return a.string() + b.string();
  }
  if (a.is_whole() && b.is_whole()) {
    return whole_result([](auto x, auto y, auto* r) { return __builtin_add_overflow(x, y, r); }, a,
                        b, "sum");
  }
  if (a.is_number() && b.is_number()) return a.real() + b.real();
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    check_length((a.items().size() + b.items().size()) * sizeof(Value));
    Items items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.is_list() ? Value::list(std::move(items)) : Value::tuple(std::move(items));
  }
  refuse("add", a, b);
}

Value subtract(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) {
    return whole_result([](auto x, auto y, auto* r) { return __builtin_sub_overflow(x, y, r); }, a,
                        b, "difference");
  }
  if (a.is_number() && b.is_number()) return a.real() - b.real();
  refuse("subtract", a, b);
}

Value multiply(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) {
    return whole_result([](auto x, auto y, auto* r) { return __builtin_mul_overflow(x, y, r); }, a,
                        b, "product");
  }
  if (a.is_number() && b.is_number()) return a.real() * b.real();
  if ((a.is_string() || a.is_sequence()) && b.is_whole()) return repeated(a, b.whole());
  if ((b.is_string() || b.is_sequence()) && a.is_whole()) return repeated(b, a.whole());
  refuse("multiply", a, b);
}

Value divide(const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) refuse("divide", a, b);
  refuse_zero(b);
  return a.real() / b.real();
}

Value divide_whole(const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) refuse("divide", a, b);
  refuse_zero(b);
  if (!a.is_whole() || !b.is_whole()) return std::floor(a.real() / b.real());
  const std::int64_t x = a.whole();
  const std::int64_t y = b.whole();
  if (y == -1) return negate(a);
  const std::int64_t quotient = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient;
}

Value remainder(const Value& a, const Value& b) {
  if (a.is_string()) return format_printf(a.string(), b);
  if (!a.is_number() || !b.is_number()) refuse("take the remainder of", a, b);
  refuse_zero(b);
  if (!a.is_whole() || !b.is_whole()) {
    const double rest = std::fmod(a.real(), b.real());
    return rest != 0.0 && (rest < 0) != (b.real() < 0) ? rest + b.real() : rest;
  }
  const std::int64_t y = b.whole();
  if (y == -1) return 0;
  const std::int64_t rest = a.whole() % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

Value power(const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) refuse("raise to a power", a, b);
  const double result = std::pow(a.real(), b.real());
  if (!a.is_whole() || !b.is_whole() || b.whole() < 0) return result;
  Value product = 1;
  for (std::int64_t i = 0; i < b.whole(); ++i) {
    if (a.whole() >= -1 && a.whole() <= 1 && i > 1) {  // one of 0, 1, -1: nothing new comes
      return a.whole() == -1 && b.whole() % 2 == 0 ? Value(1) : a;
    }
    product = multiply(product, Value(a.whole()));
  }
  return product;
}

Value negate(const Value& a) {
  if (a.is_whole()) return subtract(Value(0), a);
  if (a.is_float()) return -a.real();
  if (a.is_undefined()) throw TemplateError(a.why_undefined());
  throw TemplateError(fmt::format("{} has no negative", a.kind()));
}

Value attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) throw TemplateError(value.why_undefined());
  if (auto found = method(value, name)) return *found;
  if (value.is_object()) {
    if (auto found = value.object().attribute(name)) return *found;
  }
  if (value.is_dict()) {
    if (const Value* const member = value.find(std::string_view(name))) return *member;
  }
  return Value::undefined(missing(value, name));
}

Value subscript(const Value& value, const Value& key) {
  if (value.is_undefined()) throw TemplateError(value.why_undefined());
  if (value.is_dict()) {
    if (const Value* const member = value.find(key)) return *member;
  } else if ((value.is_sequence() || value.is_string()) && key.is_whole()) {
    const Characters characters(value);
    const std::int64_t size = characters.size();
    const std::int64_t place = key.whole() < 0 ? key.whole() + size : key.whole();
    if (place >= 0 && place < size) return characters.at(place);
  }
  if (!key.is_string()) return Value::undefined(missing(value, key.text()));
  if (value.is_object()) {
    if (auto found = value.object().attribute(key.string())) return *found;
  }
  if (auto found = method(value, key.string())) return *found;
  return Value::undefined(missing(value, key.string()));
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  if (!value.is_sequence() && !value.is_string()) {
    if (value.is_undefined()) throw TemplateError(value.why_undefined());
    return Value::undefined(fmt::format("{} cannot be sliced", value.kind()));
  }
  for (const Value* bound : {&begin, &end, &step}) {
    if (!bound->is_none() && !bound->is_whole()) {
      throw TemplateError(fmt::format("a slice from or to {}", bound->kind()));
    }
  }
  const Characters characters(value);
  const std::int64_t size = characters.size();
  const std::int64_t by = step.is_none() ? 1 : step.whole();
  if (by == 0) throw TemplateError("a slice in steps of 0");
  // As CPython's PySlice_AdjustIndices.
  const auto place = [&](const Value& bound, std::int64_t absent) {
    if (bound.is_none()) return absent;
    const std::int64_t at = bound.whole() < 0 ? bound.whole() + size : bound.whole();
    return by > 0 ? std::clamp<std::int64_t>(at, 0, size)
                  : std::clamp<std::int64_t>(at, -1, size - 1);
  };
  std::int64_t at = place(begin, by > 0 ? 0 : size - 1);
  const std::int64_t behind = place(end, by > 0 ? size : -1);
  Items items;
  std::string text;
  while (by > 0 ? at < behind : at > behind) {
    if (value.is_string()) {
      text += characters.text_at(at);
    } else {
      items.push_back(characters.at(at));
    }
    if (by > 0 ? at > behind - by : at < behind - by) break;
    at += by;
  }
  if (value.is_string()) return text;
  return value.is_list() ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

std::string format_printf(const std::string& format, const Value& arguments) {
  const Items given = arguments.is_tuple() ? arguments.items() : Items{arguments};
  std::size_t next = 0;
  std::string out;
  for (std::size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const std::size_t end = format.find_first_not_of("-+ #0123456789.", at + 1);
    if (end == std::string::npos) throw TemplateError("a format that ends within a conversion");
    if (format[end] == '%') {
      out += '%';
      at = end;
      continue;
    }
    if (next == given.size()) throw TemplateError("a format with more conversions than arguments");
    const Value& argument = given[next++];
    const std::string flags = format.substr(at, end - at);
    constexpr std::size_t kLongestFlags = 6;  // widths of up to four figures
    if (flags.size() > kLongestFlags) throw TemplateError("a format that is too wide");
    const char conversion = format[end];
    if (conversion == 's' || conversion == 'r') {
      out += fmt::sprintf(flags + "s", conversion == 's' ? argument.text() : argument.repr());
    } else if (std::string_view("dixXoc").find(conversion) != std::string_view::npos &&
               argument.is_number()) {
      out += fmt::sprintf(
          flags + (conversion == 'c' ? "c" : std::string("l") + conversion),
          argument.is_whole() ? argument.whole() : static_cast<std::int64_t>(argument.real()));
    } else if (std::string_view("feEgGF").find(conversion) != std::string_view::npos &&
               argument.is_number()) {
      out += fmt::sprintf(flags + conversion, argument.real());
    } else {
      throw TemplateError(fmt::format("a format with %{} for {}", conversion, argument.kind()));
    }
    at = end;
  }
  out = as_utf8(std::move(out));  // a precision may cut a character
  if (next < given.size() && !(arguments.is_dict() || arguments.is_list())) {
    throw TemplateError("a format with fewer conversions than arguments");
  }
  return out;
}

}  // namespace dstrain::jinja
