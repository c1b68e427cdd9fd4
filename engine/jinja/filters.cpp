// Jinja's filters, in the alphabet's order below.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "engine/jinja/characters.h"
#include "engine/jinja/functions.h"
#include "engine/jinja/json.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/text_methods.h"

namespace dstrain::jinja {
namespace {

Arguments tail_of(const Arguments& arguments, std::size_t from) {
  Arguments tail;
  for (std::size_t i = from; i < arguments.positional.size(); ++i) {
    tail.positional.push_back(arguments.positional[i]);
  }
  tail.named = arguments.named;
  return tail;
}

/// The member that a path like "function.name" leads to, numbers being places.
Value member_at(Value value, const std::string& path) {
  const Value parts = split(path, ".", -1, Side::kLeft);
  for (const Value& part : parts.items()) {
    const std::string& key = part.string();
    const bool is_place = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
    value = subscript(value, is_place ? Value(std::int64_t{std::atoll(key.c_str())}) : part);
  }
  return value;
}

/// Strings compare without their case unless it is asked for.
Value sort_key(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(lower(value.string())) : value;
}

Items sorted_by(Items items,
                const std::optional<std::string>& path,
                bool case_sensitive,
                bool reverse) {
  const auto key = [&](const Value& item) {
    return sort_key(path ? member_at(item, *path) : item, case_sensitive);
  };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    return reverse ? compare(key(b), key(a)) < 0 : compare(key(a), key(b)) < 0;
  });
  return items;
}

std::optional<std::string> path_of(const Value* value) {
  if (value == nullptr || value->is_none()) return std::nullopt;
  return value->text();
}

/// select, reject, selectattr, rejectattr: the elements for which a test holds, or does not.
template <bool keeps, bool of_attribute>
Value chosen(const Value& input, const Arguments& arguments) {
  const std::size_t first = of_attribute ? 1 : 0;
  if (of_attribute && arguments.positional.empty()) {
    throw TemplateError("selectattr and rejectattr need the name of an attribute");
  }
  const bool has_test = arguments.positional.size() > first;
  const std::string name = has_test ? arguments.positional[first].text() : "";
  const Test test = has_test ? find_test(name) : nullptr;
  if (has_test && test == nullptr) throw TemplateError(fmt::format("no test \"{}\"", name));
  const Arguments more = tail_of(arguments, first + 1);
  Items kept;
  for (Value& element : input.elements()) {
    const Value asked = of_attribute ? member_at(element, arguments.positional[0].text()) : element;
    const bool holds = has_test ? test(asked, more) : asked.truth();
    if (holds == keeps) kept.push_back(std::move(element));
  }
  return Value::list(std::move(kept));
}

Value map(const Value& input, const Arguments& arguments) {
  Items mapped;
  if (arguments.positional.empty()) {
    const Bound bound("map", arguments, {"attribute", "default"});
    const std::string path = bound.required(0).text();
    for (const Value& element : input.elements()) {
      Value member = member_at(element, path);
      mapped.push_back(member.is_undefined() ? bound.value_or(1, std::move(member))
                                             : std::move(member));
    }
    return Value::list(std::move(mapped));
  }
  const std::string name = arguments.positional[0].text();
  const Filter filter = find_filter(name);
  if (filter == nullptr) throw TemplateError(fmt::format("no filter \"{}\"", name));
  const Arguments more = tail_of(arguments, 1);
  for (const Value& element : input.elements()) {
    mapped.push_back(filter(element, more));
  }
  return Value::list(std::move(mapped));
}

Value join(const Value& input, const Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  const std::string separator = bound.string_or(0, "");
  const auto path = path_of(bound.find(1));
  std::string out;
  bool is_first = true;
  for (const Value& element : input.elements()) {
    if (!is_first) out += separator;
    is_first = false;
    out += (path ? member_at(element, *path) : element).text();
  }
  return out;
}

Value indent(const Value& input, const Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  const Value width = bound.value_or(0, 4);
  constexpr std::int64_t kWidest = 1000;
  const std::string front = width.is_string()
                                ? width.string()
                                : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(
                                                  bound.integer_or(0, 4), 0, kWidest)),
                                              ' ');
  const bool first = bound.value_or(1, false).truth();
  const bool blank = bound.value_or(2, false).truth();
  const Value lines = split(replaced(replaced(input.text(), "\r\n", "\n", -1), "\r", "\n", -1),
                            "\n", -1, Side::kLeft);
  std::string out = first ? front : "";
  for (std::size_t i = 0; i < lines.items().size(); ++i) {
    const std::string& line = lines.items()[i].string();
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !line.empty())) out += front;
    out += line;
  }
  return out;
}

Value to_integer(const Value& input, const Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  const Value otherwise = bound.value_or(0, 0);
  if (input.is_whole()) return input.whole();
  if (input.is_float()) {
    return std::isfinite(input.real()) && std::fabs(input.real()) < 9e18
               ? Value(static_cast<std::int64_t>(input.real()))
               : otherwise;
  }
  if (!input.is_string()) return otherwise;
  const std::string text = stripped(input.string(), std::nullopt, Side::kBoth);
  char* end = nullptr;
  const auto whole = std::strtoll(text.c_str(), &end, static_cast<int>(bound.integer_or(1, 10)));
  if (!text.empty() && *end == '\0') return std::int64_t{whole};
  const double real = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && std::isfinite(real)
             ? Value(static_cast<std::int64_t>(real))
             : otherwise;
}

Value to_float(const Value& input, const Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  if (input.is_number()) return input.real();
  if (input.is_string()) {
    const std::string text = stripped(input.string(), std::nullopt, Side::kBoth);
    char* end = nullptr;
    const double real = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0') return real;
  }
  return bound.value_or(0, 0.0);
}

Value round(const Value& input, const Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  if (!input.is_number()) throw TemplateError(fmt::format("round of {}", input.kind()));
  const std::string method = bound.string_or(1, "common");
  const std::int64_t precision = std::clamp<std::int64_t>(bound.integer_or(0, 0), 0, 300);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(input.real() * scale) / scale;
  if (method == "floor") return std::floor(input.real() * scale) / scale;
  // By its exact digits, as Python: 2.45 is a little more than it looks.
  return std::strtod(fmt::format("{:.{}f}", input.real(), precision).c_str(), nullptr);
}

Value sum(const Value& input, const Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  const auto path = path_of(bound.find(0));
  Value total = bound.value_or(1, 0);
  for (const Value& element : input.elements()) {
    total = add(total, path ? member_at(element, *path) : element);
  }
  return total;
}

template <int sign>
Value extreme(const Value& input, const Arguments& arguments) {
  const Bound bound("min", arguments, {"case_sensitive", "attribute"});
  const Items items = sorted_by(input.elements(), path_of(bound.find(1)),
                                bound.value_or(0, false).truth(), sign > 0);
  return items.empty() ? Value::undefined("there is no item in an empty sequence") : items.front();
}

Value unique(const Value& input, const Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = bound.value_or(0, false).truth();
  const auto path = path_of(bound.find(1));
  Items keys;
  Items kept;
  for (Value& element : input.elements()) {
    const Value key = sort_key(path ? member_at(element, *path) : element, case_sensitive);
    if (std::none_of(keys.begin(), keys.end(),
                     [&](const Value& known) { return equal(known, key); })) {
      keys.push_back(key);
      kept.push_back(std::move(element));
    }
  }
  return Value::list(std::move(kept));
}

Value batch(const Value& input, const Arguments& arguments) {
  const Bound bound("batch", arguments, {"linecount", "fill_with"});
  const std::int64_t size = bound.integer_or(0, 0);
  if (size < 1) throw TemplateError("batch() of less than one element");
  if (size > 100'000) throw TemplateError("batch() of more than 100000 elements");
  Items batches;
  Items open;
  for (Value& element : input.elements()) {
    open.push_back(std::move(element));
    if (static_cast<std::int64_t>(open.size()) == size) {
      batches.push_back(Value::list(std::exchange(open, {})));
    }
  }
  if (!open.empty()) {
    const Value* const filling = bound.find(1);
    while (filling != nullptr && static_cast<std::int64_t>(open.size()) < size) {
      open.push_back(*filling);
    }
    batches.push_back(Value::list(std::move(open)));
  }
  return Value::list(std::move(batches));
}

Value groupby(const Value& input, const Arguments& arguments) {
  const Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"});
  const std::string path = bound.required(0).text();
  const bool case_sensitive = bound.value_or(2, false).truth();
  Items groups;
  Items open;
  Value name;
  const auto close = [&] {
    if (!open.empty()) {
      groups.push_back(Value::tuple({name, Value::list(std::exchange(open, {}))}));
    }
  };
  for (const Value& element : sorted_by(input.elements(), path, case_sensitive, false)) {
    const Value key = member_at(element, path);
    if (open.empty() || !equal(sort_key(key, case_sensitive), sort_key(name, case_sensitive))) {
      close();
      name = key;
    }
    open.push_back(element);
  }
  close();
  return Value::list(std::move(groups));
}

Value dictsort(const Value& input, const Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const bool by_value = bound.string_or(1, "key") == "value";
  if (!input.is_dict()) throw TemplateError(fmt::format("dictsort of {}", input.kind()));
  Items pairs;
  for (const auto& [key, value] : input.members()) {
    pairs.push_back(Value::tuple({key, value}));
  }
  return Value::list(sorted_by(std::move(pairs), by_value ? "1" : "0",
                               bound.value_or(0, false).truth(), bound.value_or(2, false).truth()));
}

Value items(const Value& input, const Arguments& /*arguments*/) {
  if (input.is_undefined()) return Value::list({});
  if (!input.is_dict()) throw TemplateError(fmt::format("items of {}", input.kind()));
  return method(input, "items")->object().call({});
}

Value tojson(const Value& input, const Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = bound.value_or(0, false).truth(),
                  .sorts_keys = bound.value_or(3, false).truth()};
  if (const Value* const width = bound.find(1); width != nullptr && !width->is_none()) {
    style.indent =
        width->is_string()
            ? width->string()
            : std::string(
                  static_cast<std::size_t>(std::max<std::int64_t>(0, bound.integer_or(1, 0))), ' ');
    style.item_separator = ",";  // as Python, where a line break follows
  }
  if (const Value* const pair = bound.find(2); pair != nullptr && !pair->is_none()) {
    const Items separators = pair->elements();
    if (separators.size() != 2) throw TemplateError("tojson: separators are two strings");
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  return to_json(input, style);
}

Value truncate(const Value& input, const Arguments& arguments) {
  const Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::int64_t length = bound.integer_or(0, 255);
  const std::string end = bound.string_or(2, "...");
  const Characters characters(input);
  if (characters.size() <= length + bound.integer_or(3, 5)) return input;
  const Value head = slice(input, 0, std::max<std::int64_t>(0, length - count_characters(end)), {});
  if (bound.value_or(1, false).truth()) return head.string() + end;
  return split(head.string(), " ", 1, Side::kRight).items()[0].string() + end;
}

Value escape(const Value& input, const Arguments& /*arguments*/) {
  std::string out;
  for (const char c : input.text()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

struct Named {
  std::string_view name;
  Filter filter;
};

Value default_of(const Value& input, const Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  const bool is_absent =
      input.is_undefined() || (bound.value_or(1, false).truth() && !input.truth());
  return is_absent ? bound.value_or(0, "") : input;
}

Value length(const Value& input, const Arguments& /*arguments*/) {
  if (input.is_string()) return count_characters(input.string());
  if (input.is_dict()) return static_cast<std::int64_t>(input.members().size());
  if (input.is_undefined() || input.is_sequence()) {
    return static_cast<std::int64_t>(input.elements().size());
  }
  throw TemplateError(fmt::format("length of {}", input.kind()));
}

constexpr Named kFilters[] = {
    {"abs",
     [](const Value& input, const Arguments&) -> Value {
       return compare(input, 0) < 0 ? negate(input) : input;
     }},
    {"attr",
     [](const Value& input, const Arguments& arguments) -> Value {
       const Bound bound("attr", arguments, {"name"});
       const std::string name = bound.required(0).text();
       if (auto found = method(input, name)) return *found;
       if (input.is_object()) {
         if (auto found = input.object().attribute(name)) return *found;
       }
       return Value::undefined(fmt::format("{} has no \"{}\"", input.kind(), name));
     }},
    {"batch", batch},
    {"capitalize",
     [](const Value& input, const Arguments&) -> Value { return capitalized(input.text()); }},
    {"count", length},
    {"d", default_of},
    {"default", default_of},
    {"dictsort", dictsort},
    {"e", escape},
    {"escape", escape},
    {"first",
     [](const Value& input, const Arguments&) -> Value {
       const Items items = input.elements();
       return items.empty() ? Value::undefined("there is no first item in an empty sequence")
                            : items.front();
     }},
    {"float", to_float},
    {"format",
     [](const Value& input, const Arguments& arguments) -> Value {
       return format_printf(input.text(), Value::tuple(arguments.positional));
     }},
    {"groupby", groupby},
    {"indent", indent},
    {"int", to_integer},
    {"items", items},
    {"join", join},
    {"last",
     [](const Value& input, const Arguments&) -> Value {
       const Items items = input.elements();
       return items.empty() ? Value::undefined("there is no last item in an empty sequence")
                            : items.back();
     }},
    {"length", length},
    {"list",
     [](const Value& input, const Arguments&) -> Value { return Value::list(input.elements()); }},
    {"lower", [](const Value& input, const Arguments&) -> Value { return lower(input.text()); }},
    {"map", map},
    {"max", extreme<1>},
    {"min", extreme<-1>},
    {"reject", chosen<false, false>},
    {"rejectattr", chosen<false, true>},
    {"replace",
     [](const Value& input, const Arguments& arguments) -> Value {
       const Bound bound("replace", arguments, {"old", "new", "count"});
       return replaced(input.text(), bound.required(0).text(), bound.required(1).text(),
                       bound.integer_or(2, -1));
     }},
    {"reverse",
     [](const Value& input, const Arguments&) -> Value {
       return input.is_string() ? slice(input, {}, {}, -1)
                                : slice(Value::list(input.elements()), {}, {}, -1);
     }},
    {"round", round},
    {"safe", [](const Value& input, const Arguments&) -> Value { return input.text(); }},
    {"select", chosen<true, false>},
    {"selectattr", chosen<true, true>},
    {"sort",
     [](const Value& input, const Arguments& arguments) -> Value {
       const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
       return Value::list(sorted_by(input.elements(), path_of(bound.find(2)),
                                    bound.value_or(1, false).truth(),
                                    bound.value_or(0, false).truth()));
     }},
    {"string", [](const Value& input, const Arguments&) -> Value { return input.text(); }},
    {"sum", sum},
    {"title",
     [](const Value& input, const Arguments&) -> Value {
       return method(Value(input.text()), "title")->object().call({});
     }},
    {"tojson", tojson},
    {"trim",
     [](const Value& input, const Arguments& arguments) -> Value {
       const Bound bound("trim", arguments, {"chars"});
       const auto characters = path_of(bound.find(0));
       return stripped(input.text(), characters, Side::kBoth);
     }},
    {"truncate", truncate},
    {"unique", unique},
    {"upper", [](const Value& input, const Arguments&) -> Value { return upper(input.text()); }},
    {"wordcount",
     [](const Value& input, const Arguments&) -> Value {
       return static_cast<std::int64_t>(
           split(input.text(), std::nullopt, -1, Side::kLeft).items().size());
     }},
};

}  // namespace

Filter find_filter(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                         [&](const Named& filter) { return filter.name == name; });
  return found == std::end(kFilters) ? nullptr : found->filter;
}

}  // namespace dstrain::jinja
