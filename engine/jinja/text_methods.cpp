#include "engine/jinja/text_methods.h"

#include <algorithm>

#include <fmt/format.h>
#include <utf8proc.h>

#include "engine/jinja/characters.h"
#include "engine/jinja/operators.h"

namespace dstrain::jinja {
namespace {

/// str.isspace: White_Space, and the separators of ASCII.
bool is_python_space(char32_t character) {
  return is_space(character) || (character >= 0x1C && character <= 0x1F);
}

/// The beginning of the character that ends at `end`.
std::size_t begin_of_last(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U);
  return end;
}

bool is_space_at(std::string_view text, std::size_t at) {
  return is_python_space(next_character(text, at));
}

Value split_at_spaces(std::string_view text, std::int64_t most, Side from) {
  Items parts;
  const auto without_front = [&] {
    return text.substr(text.size() - stripped(text, std::nullopt, Side::kLeft).size());
  };
  if (from == Side::kRight && most >= 0) {
    std::string_view rest = text;
    while (true) {
      const std::string kept = stripped(rest, std::nullopt, Side::kRight);
      rest = rest.substr(0, kept.size());
      if (rest.empty()) break;
      std::size_t begin = rest.size();
      while (begin > 0 && !is_space_at(rest, begin_of_last(rest, begin))) {
        begin = begin_of_last(rest, begin);
      }
      if (static_cast<std::int64_t>(parts.size()) == most || begin == 0) {
        parts.emplace_back(rest);
        break;
      }
      parts.emplace_back(rest.substr(begin));
      rest = rest.substr(0, begin);
    }
    std::reverse(parts.begin(), parts.end());
    return Value::list(std::move(parts));
  }
  text = without_front();
  while (!text.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.emplace_back(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size() && !is_space_at(text, end)) {
      end += bytes_of_character(text[end]);
    }
    end = std::min(end, text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    text = without_front();
  }
  return Value::list(std::move(parts));
}

}  // namespace

std::string stripped(std::string_view text,
                     const std::optional<std::string>& characters,
                     Side side) {
  const auto goes = [&](std::size_t at) {
    if (!characters) return is_space_at(text, at);
    const std::string_view one = text.substr(at, bytes_of_character(text[at]));
    // A character is no part of another one in UTF-8.
    return characters->find(one) != std::string::npos;
  };
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (side != Side::kRight && begin < end && goes(begin)) {
    begin += bytes_of_character(text[begin]);
  }
  begin = std::min(begin, end);
  while (side != Side::kLeft && end > begin && goes(begin_of_last(text, end))) {
    end = begin_of_last(text, end);
  }
  return std::string(text.substr(begin, end - begin));
}

Value split(const std::string& text,
            const std::optional<std::string>& separator,
            std::int64_t most,
            Side from) {
  if (!separator) return split_at_spaces(text, most, from);
  if (separator->empty()) throw TemplateError("split() at an empty separator");
  Items parts;
  std::string_view rest = text;
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t at = from == Side::kRight ? rest.rfind(*separator) : rest.find(*separator);
    if (at == std::string_view::npos) break;
    if (from == Side::kRight) {
      parts.emplace_back(rest.substr(at + separator->size()));
      rest = rest.substr(0, at);
    } else {
      parts.emplace_back(rest.substr(0, at));
      rest.remove_prefix(at + separator->size());
    }
  }
  parts.emplace_back(rest);
  if (from == Side::kRight) std::reverse(parts.begin(), parts.end());
  return Value::list(std::move(parts));
}

std::string replaced(std::string_view text,
                     std::string_view old,
                     std::string_view by,
                     std::int64_t most) {
  std::string out;
  std::int64_t done = 0;
  check_length((old.empty() ? text.size() + 1 : text.size() / old.size()) * by.size());
  if (old.empty()) {  // between all characters
    for (std::size_t at = 0; at <= text.size(); ++done) {
      if (most < 0 || done < most) out += by;
      if (at == text.size()) break;
      const std::size_t bytes = bytes_of_character(text[at]);
      out += text.substr(at, bytes);
      at = std::min(at + bytes, text.size());
    }
    return out;
  }
  for (; most < 0 || done < most; ++done) {
    const std::size_t at = text.find(old);
    if (at == std::string_view::npos) break;
    out.append(text.substr(0, at)).append(by);
    text.remove_prefix(at + old.size());
  }
  return out.append(text);
}

std::string upper(std::string_view text) {
  constexpr char32_t kSharpS = 0xDF;  // its upper case is two characters (SpecialCasing.txt)
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t character = next_character(text, at);
    if (character == kSharpS) {
      out += "SS";
    } else {
      append_character(
          out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))));
    }
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    append_lower_case(out, next_character(text, at));
  }
  return out;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return "";
  const std::size_t first = std::min(bytes_of_character(text[0]), text.size());
  return upper(text.substr(0, first)) + lower(text.substr(first));
}

std::string join_strings(std::string_view separator, const Value& elements) {
  std::string out;
  bool is_first = true;
  for (const Value& element : elements.elements()) {
    if (!element.is_string()) {
      throw TemplateError(fmt::format("join() of {}, expected strings", element.kind()));
    }
    if (!is_first) out += separator;
    is_first = false;
    out += element.string();
  }
  return out;
}

namespace {

using Call = Value (*)(const Value&, const Arguments&);

class Method final : public Object {
 public:
  Method(std::string_view name, Value value, Call body)
      : name_(name), value_(std::move(value)), call_(body) {}
  [[nodiscard]] std::string describe() const override {
    return fmt::format("the method {} of {}", name_, value_.kind());
  }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& arguments) override { return call_(value_, arguments); }

 private:
  std::string_view name_;
  Value value_;
  Call call_;
};

std::optional<std::string> optional_string(const Bound& bound, std::size_t place) {
  const Value* const value = bound.find(place);
  if (value == nullptr || value->is_none()) return std::nullopt;
  return bound.string_or(place, "");
}

template <Side side>
Value strip_method(const Value& value, const Arguments& arguments) {
  const Bound bound("strip", arguments, {"chars"});
  return stripped(value.string(), optional_string(bound, 0), side);
}

template <Side side>
Value split_method(const Value& value, const Arguments& arguments) {
  const Bound bound("split", arguments, {"sep", "maxsplit"});
  return split(value.string(), optional_string(bound, 0), bound.integer_or(1, -1), side);
}

template <bool at_end>
Value affix_method(const Value& value, const Arguments& arguments) {
  const Bound bound(at_end ? "endswith" : "startswith", arguments, {"affix"});
  const Value& asked = bound.required(0);
  const auto has = [&](const Value& affix) {
    if (!affix.is_string()) {
      throw TemplateError(fmt::format("{} is {}, expected a string",
                                      at_end ? "endswith()" : "startswith()", affix.kind()));
    }
    return at_end ? value.string().ends_with(affix.string())
                  : value.string().starts_with(affix.string());
  };
  return asked.is_tuple() ? std::any_of(asked.items().begin(), asked.items().end(), has)
                          : has(asked);
}

template <bool from_end>
Value find_method(const Value& value, const Arguments& arguments) {
  const Bound bound("find", arguments, {"sub"});
  const std::string& text = value.string();
  const std::string part = bound.required(0).text();
  const std::size_t at = from_end ? text.rfind(part) : text.find(part);
  return at == std::string::npos ? -1 : count_characters(std::string_view(text).substr(0, at));
}

template <std::string (*map)(std::string_view)>
Value map_method(const Value& value, const Arguments& arguments) {
  const Bound bound("case", arguments, {});
  return map(value.string());
}

std::string titled(std::string_view text) {
  std::string out;
  bool begins = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t from = at;
    const char32_t character = next_character(text, at);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
    const bool is_cased = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
    const std::string_view one = text.substr(from, at - from);
    out += begins ? upper(one) : lower(one);
    begins = !is_cased;
  }
  return out;
}

template <bool (*is)(char32_t)>
Value all_method(const Value& value, const Arguments& arguments) {
  const Bound bound("is…", arguments, {});
  const std::string& text = value.string();
  for (std::size_t at = 0; at < text.size();) {
    if (!is(next_character(text, at))) return false;
  }
  return !text.empty();
}

/// str.splitlines.
bool ends_line(char32_t character) {
  return (character >= '\n' && character <= '\r') || (character >= 0x1C && character <= 0x1E) ||
         character == 0x85 || character == 0x2028 || character == 0x2029;
}

bool is_decimal(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character)) == UTF8PROC_CATEGORY_ND;
}
bool is_letter(char32_t character) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_letter_or_number(char32_t character) {
  return is_letter(character) || is_numeric(character);
}

/// str.format with {}, {0} and {name}, without what may follow a colon.
Value format_method(const Value& value, const Arguments& arguments) {
  const std::string& format = value.string();
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char character = format[at];
    const bool doubled = at + 1 < format.size() && format[at + 1] == character;
    if ((character == '{' || character == '}') && doubled) {
      out += character;
      ++at;
      continue;
    }
    if (character != '{') {
      out += character;
      continue;
    }
    const std::size_t end = format.find('}', at);
    if (end == std::string::npos) throw TemplateError("format(): a { without its }");
    const std::string name = format.substr(at + 1, end - at - 1);
    const bool is_number = name.find_first_not_of("0123456789") == std::string::npos;
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first == name; });
    const std::size_t place = name.empty() ? next++ : is_number ? std::stoul(name) : 0;
    if (is_number && place < arguments.positional.size()) {
      out += arguments.positional[place].text();
    } else if (!is_number && named != arguments.named.end()) {
      out += named->second.text();
    } else {
      throw TemplateError(fmt::format("format(): nothing for {{{}}}", name));
    }
    at = end;
  }
  return out;
}

struct Named {
  std::string_view name;
  Call call;
};

constexpr Named kStringMethods[] = {
    {"strip", strip_method<Side::kBoth>},
    {"lstrip", strip_method<Side::kLeft>},
    {"rstrip", strip_method<Side::kRight>},
    {"split", split_method<Side::kLeft>},
    {"rsplit", split_method<Side::kRight>},
    {"startswith", affix_method<false>},
    {"endswith", affix_method<true>},
    {"find", find_method<false>},
    {"rfind", find_method<true>},
    {"upper", map_method<upper>},
    {"lower", map_method<lower>},
    {"capitalize", map_method<capitalized>},
    {"title", map_method<titled>},
    {"isdigit", all_method<is_decimal>},
    {"isdecimal", all_method<is_decimal>},
    {"isnumeric", all_method<is_numeric>},
    {"isalpha", all_method<is_letter>},
    {"isalnum", all_method<is_letter_or_number>},
    {"isspace", all_method<is_python_space>},
    {"format", format_method},
    {"replace",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("replace", arguments, {"old", "new", "count"});
       return replaced(value.string(), bound.required(0).text(), bound.required(1).text(),
                       bound.integer_or(2, -1));
     }},
    {"join",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("join", arguments, {"iterable"});
       return join_strings(value.string(), bound.required(0));
     }},
    {"count",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("count", arguments, {"sub"});
       const std::string part = bound.required(0).text();
       if (part.empty()) return count_characters(value.string()) + 1;
       std::int64_t count = 0;
       for (std::size_t at = 0; (at = value.string().find(part, at)) != std::string::npos;
            at += part.size()) {
         ++count;
       }
       return count;
     }},
    {"removeprefix",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("removeprefix", arguments, {"prefix"});
       const std::string prefix = bound.required(0).text();
       return value.string().starts_with(prefix) ? value.string().substr(prefix.size())
                                                 : value.string();
     }},
    {"removesuffix",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("removesuffix", arguments, {"suffix"});
       const std::string suffix = bound.required(0).text();
       return value.string().ends_with(suffix)
                  ? value.string().substr(0, value.string().size() - suffix.size())
                  : value.string();
     }},
    {"splitlines",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("splitlines", arguments, {"keepends"});
       const bool keeps = bound.value_or(0, false).truth();
       Items lines;
       std::string_view rest = value.string();
       while (!rest.empty()) {
         std::size_t end = 0;
         std::size_t behind = 0;
         while (end < rest.size() && !ends_line(next_character(rest, behind))) {
           end = behind;
         }
         behind = rest.substr(end).starts_with("\r\n") ? end + 2 : behind;
         lines.emplace_back(rest.substr(0, keeps ? behind : end));
         rest.remove_prefix(std::min(behind, rest.size()));
       }
       return Value::list(std::move(lines));
     }},
};

constexpr Named kDictMethods[] = {
    {"get",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("get", arguments, {"key", "default"});
       const Value* const member = value.find(bound.required(0));
       return member != nullptr ? *member : bound.value_or(1, {});
     }},
    {"keys",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("keys", arguments, {});
       return Value::list(value.elements());
     }},
    {"values",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("values", arguments, {});
       Items values;
       for (const auto& member : value.members()) {
         values.push_back(member.second);
       }
       return Value::list(std::move(values));
     }},
    {"items",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("items", arguments, {});
       Items pairs;
       for (const auto& [key, member] : value.members()) {
         pairs.push_back(Value::tuple({key, member}));
       }
       return Value::list(std::move(pairs));
     }},
};

constexpr Named kSequenceMethods[] = {
    {"index",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("index", arguments, {"value"});
       const Items& items = value.items();
       const auto found = std::find_if(items.begin(), items.end(), [&](const Value& item) {
         return equal(item, bound.required(0));
       });
       if (found == items.end()) throw TemplateError("index() of what is not in the list");
       return static_cast<std::int64_t>(found - items.begin());
     }},
    {"count",
     [](const Value& value, const Arguments& arguments) -> Value {
       const Bound bound("count", arguments, {"value"});
       return std::int64_t{
           std::count_if(value.items().begin(), value.items().end(),
                         [&](const Value& item) { return equal(item, bound.required(0)); })};
     }},
};

template <std::size_t N>
std::optional<Value> find_method_in(const Named (&methods)[N],
                                    const Value& value,
                                    std::string_view name) {
  for (const Named& method : methods) {
    if (method.name == name) {
      return Value(
          std::shared_ptr<Object>(std::make_shared<Method>(method.name, value, method.call)));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Value> method(const Value& value, std::string_view name) {
  if (value.is_string()) return find_method_in(kStringMethods, value, name);
  if (value.is_dict()) return find_method_in(kDictMethods, value, name);
  if (value.is_sequence()) return find_method_in(kSequenceMethods, value, name);
  return std::nullopt;
}

}  // namespace dstrain::jinja
