#include "engine/jinja/json.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/jinja/operators.h"
#include "engine/tokenizer/unicode_text.h"

namespace dstrain::jinja {
namespace {

void append_string(std::string& out, const std::string& text, bool ascii) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t from = at;
    const char32_t character = next_character(text, at);
    const auto escape = [&](char letter) {
      out += '\\';
      out += letter;
    };
    if (character == '"' || character == '\\') {
      escape(static_cast<char>(character));
    } else if (character == '\n') {
      escape('n');
    } else if (character == '\r') {
      escape('r');
    } else if (character == '\t') {
      escape('t');
    } else if (character == '\f') {
      escape('f');
    } else if (character == '\b') {
      escape('b');
    } else if (character < 0x20 || (ascii && character >= 0x7F && character < 0x10000)) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(character));
    } else if (ascii && character >= 0x10000) {
      const auto above = static_cast<unsigned>(character) - 0x10000U;
      out +=
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800U + (above >> 10U), 0xDC00U + (above & 0x3FFU));
    } else {
      out.append(text, from, at - from);
    }
  }
  out += '"';
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  std::string write(const Value& value) {
    append(value, 0);
    return std::move(out_);
  }

 private:
  void append(const Value& value, int level) {
    constexpr int kDeepest = 500;
    if (level > kDeepest) throw TemplateError("tojson of what is nested too deeply");
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.boolean() ? "true" : "false";
    } else if (value.is_float() && !std::isfinite(value.real())) {
      out_ += std::isnan(value.real()) ? "NaN" : value.real() > 0 ? "Infinity" : "-Infinity";
    } else if (value.is_number()) {
      out_ += value.repr();
    } else if (value.is_string()) {
      append_string(out_, value.string(), style_.ascii);
    } else if (value.is_sequence()) {
      append_list(value.items(), level);
    } else if (value.is_dict()) {
      append_dict(value.members(), level);
    } else {
      throw TemplateError(fmt::format("tojson of {}", value.kind()));
    }
  }

  void append_list(const Items& items, int level) {
    out_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      begin_item(i, level + 1);
      append(items[i], level + 1);
    }
    end_items(items.size(), level, ']');
  }
  void append_dict(Members members, int level) {
    if (style_.sorts_keys) {
      std::stable_sort(members.begin(), members.end(),
                       [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    }
    out_ += '{';
    for (std::size_t i = 0; i < members.size(); ++i) {
      begin_item(i, level + 1);
      const Value& key = members[i].first;
      if (key.is_none() || key.is_number()) {
        append_string(out_, to_json(key), style_.ascii);
      } else {
        append_string(out_, key.text(), style_.ascii);
      }
      out_ += style_.key_separator;
      append(members[i].second, level + 1);
    }
    end_items(members.size(), level, '}');
  }
  void begin_item(std::size_t index, int level) {
    if (index > 0) out_ += style_.item_separator;
    new_line(level);
  }
  void end_items(std::size_t count, int level, char close) {
    if (count > 0) new_line(level);
    out_ += close;
  }
  void new_line(int level) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) {
      out_ += *style_.indent;
    }
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Value from_json(const nlohmann::ordered_json& json) {
  using Kind = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Kind::boolean:
      return json.get<bool>();
    case Kind::number_integer:
      return json.get<std::int64_t>();
    case Kind::number_unsigned:
      return json.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                 ? Value(json.get<std::int64_t>())
                 : Value(json.get<double>());
    case Kind::number_float:
      return json.get<double>();
    case Kind::string:
      return json.get_ref<const std::string&>();
    case Kind::array: {
      Items items;
      for (const auto& item : json) {
        items.push_back(from_json(item));
      }
      return Value::list(std::move(items));
    }
    case Kind::object: {
      Members members;
      for (const auto& [key, value] : json.items()) {
        members.emplace_back(key, from_json(value));
      }
      return Value::dict(std::move(members));
    }
    default:
      return {};
  }
}

std::string to_json(const Value& value, const JsonStyle& style) {
  return Writer(style).write(value);
}

}  // namespace dstrain::jinja
