#include "engine/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>
#include <utf8proc.h>

#include "engine/tokenizer/unicode_text.h"

namespace dstrain::jinja {
namespace {

/// As Python's repr() of a float.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::fabs(value);
  if (size != 0.0 && (size < 1e-4 || size >= 1e16)) {
    // The fewest digits that are read back as the same number; the exponent has two at least.
    for (int digits = 0; digits < 17; ++digits) {
      std::string text = fmt::format("{:.{}e}", value, digits);
      if (std::strtod(text.c_str(), nullptr) == value) return text;
    }
  }
  std::string digits = fmt::format("{}", value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

/// str.isprintable of one character.
bool is_printable(char32_t character) {
  if (character < 0x7F) return character >= 0x20;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
  return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

/// As Python's repr() of a string.
std::string quoted(const std::string& text) {
  const bool doubles = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = doubles ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t from = at;
    const char32_t character = next_character(text, at);
    const auto code = static_cast<unsigned>(character);
    if (character == static_cast<char32_t>(quote) || character == '\\') {
      out += '\\';
      out += static_cast<char>(character);
    } else if (character == '\n') {
      out += "\\n";
    } else if (character == '\r') {
      out += "\\r";
    } else if (character == '\t') {
      out += "\\t";
    } else if (is_printable(character)) {
      out.append(text, from, at - from);
    } else {
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

std::string joined(const Items& items, std::string_view open, std::string_view close) {
  std::string out(open);
  for (std::size_t i = 0; i < items.size(); ++i) {
    out += i == 0 ? "" : ", ";
    out += items[i].repr();
  }
  return out.append(close);
}

}  // namespace

Value Value::undefined(std::string what) {
  Value value;
  value.held_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

Value Value::list(Items items) {
  Value value;
  value.held_ = List{std::make_shared<const Items>(std::move(items))};
  return value;
}

Value Value::tuple(Items items) {
  Value value;
  value.held_ = Tuple{std::make_shared<const Items>(std::move(items))};
  return value;
}

Value Value::dict(Members members) {
  Members kept;
  kept.reserve(members.size());
  for (auto& member : members) {
    const auto same = std::find_if(kept.begin(), kept.end(), [&](const auto& earlier) {
      return equal(earlier.first, member.first);
    });
    if (same == kept.end()) {
      kept.push_back(std::move(member));
    } else {
      same->second = std::move(member.second);
    }
  }
  Value value;
  value.held_ = Dict{std::make_shared<const Members>(std::move(kept))};
  return value;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return real() != 0.0;
  if (is_string()) return !string().empty();
  if (is_sequence()) return !items().empty();
  if (is_dict()) return !members().empty();
  return true;
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : members()) {
    if (name.is_string() && name.string() == key) return &value;
  }
  return nullptr;
}

const Value* Value::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.string()));
  for (const auto& [name, value] : members()) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

std::string Value::text() const {
  return is_string() ? string() : is_undefined() ? "" : repr();
}

std::string Value::repr() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (is_bool()) return boolean() ? "True" : "False";
  if (is_integer()) return fmt::format("{}", integer());
  if (is_float()) return float_text(real());
  if (is_string()) return quoted(string());
  if (is_list()) return joined(items(), "[", "]");
  if (is_tuple()) return joined(items(), "(", items().size() == 1 ? ",)" : ")");
  if (is_object()) return "<" + object().describe() + ">";
  std::string out = "{";
  for (const auto& [key, value] : members()) {
    out += out.size() == 1 ? "" : ", ";
    out += key.repr() + ": " + value.repr();
  }
  return out + "}";
}

std::string Value::kind() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is_bool()) return "a truth value";
  if (is_integer()) return "an integer";
  if (is_float()) return "a float";
  if (is_string()) return "a string";
  if (is_list()) return "a list";
  if (is_tuple()) return "a tuple";
  if (is_dict()) return "a dictionary";
  return object().describe();
}

Items Value::elements() const {
  if (is_undefined()) return {};
  if (is_sequence()) return items();
  Items found;
  if (is_dict()) {
    for (const auto& member : members()) {
      found.push_back(member.first);
    }
    return found;
  }
  if (is_string()) {
    const std::string& all = string();
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t bytes = bytes_of_character(all[at]);
      found.emplace_back(all.substr(at, bytes));
      at += bytes;
    }
    return found;
  }
  throw TemplateError(fmt::format("{} has no elements to go through", kind()));
}

bool Value::is_same(const Value& other) const {
  if (held_.index() != other.held_.index()) return false;
  if (is_none()) return true;
  if (is_number()) return real() == other.real();
  if (is_string()) return string() == other.string();
  if (is_sequence()) return &items() == &other.items();
  if (is_dict()) return &members() == &other.members();
  if (is_object()) return &object() == &other.object();
  return false;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.real() == b.real();
  }
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_undefined() && b.is_undefined()) return true;
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                      equal);
  }
  if (a.is_dict() && b.is_dict()) {
    return a.members().size() == b.members().size() &&
           std::all_of(a.members().begin(), a.members().end(), [&](const auto& member) {
             const Value* const other = b.find(member.first);
             return other != nullptr && equal(member.second, *other);
           });
  }
  return a.is_same(b);
}

Bound::Bound(std::string_view function,
             const Arguments& arguments,
             std::initializer_list<std::string_view> parameters)
    : function_(function), parameters_(parameters), values_(parameters.size(), nullptr) {
  if (arguments.positional.size() > parameters_.size()) {
    throw TemplateError(fmt::format("{}() takes {} arguments, and {} were given", function,
                                    parameters_.size(), arguments.positional.size()));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(parameters_.begin(), parameters_.end(), name);
    if (place == parameters_.end()) {
      throw TemplateError(fmt::format("{}() has no parameter \"{}\"", function, name));
    }
    const Value*& bound = values_[static_cast<std::size_t>(place - parameters_.begin())];
    if (bound != nullptr) {
      throw TemplateError(fmt::format("{}() gets \"{}\" twice", function, name));
    }
    bound = &value;
  }
}

const Value& Bound::required(std::size_t place) const {
  if (values_[place] == nullptr) {
    throw TemplateError(fmt::format("{}() needs \"{}\"", function_, parameters_[place]));
  }
  return *values_[place];
}

std::int64_t Bound::integer_or(std::size_t place, std::int64_t absent) const {
  const Value* const value = values_[place];
  if (value == nullptr || value->is_none()) return absent;
  if (!value->is_whole()) {
    throw TemplateError(fmt::format("{}(): \"{}\" is {}, expected an integer", function_,
                                    parameters_[place], value->kind()));
  }
  return value->whole();
}

std::string Bound::string_or(std::size_t place, std::string_view absent) const {
  const Value* const value = values_[place];
  if (value == nullptr || value->is_none()) return std::string(absent);
  if (!value->is_string()) {
    throw TemplateError(fmt::format("{}(): \"{}\" is {}, expected a string", function_,
                                    parameters_[place], value->kind()));
  }
  return value->string();
}

}  // namespace dstrain::jinja
