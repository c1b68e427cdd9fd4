// Short ways to write one line of the key table. field() makes both directions, JSON → Config and
// back, from one accessor, so that they cannot disagree.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "engine/config/config_keys.h"

namespace dstrain {

template <typename T>
struct OptionalValue {
  using type = T;
  static constexpr bool kOptional = false;
};
template <typename T>
struct OptionalValue<std::optional<T>> {
  using type = T;
  static constexpr bool kOptional = true;
};

template <typename T>
constexpr KeyKind key_kind() {
  if constexpr (std::is_same_v<T, bool>) return KeyKind::kBool;
  if constexpr (std::is_integral_v<T>) return KeyKind::kInteger;
  if constexpr (std::is_floating_point_v<T>) return KeyKind::kNumber;
  return KeyKind::kString;
}

template <typename T>
T value_of(const JsonNode& node) {
  if constexpr (std::is_same_v<T, bool>) {
    return node.boolean;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(node.integer.value());
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(node.number);
  } else {
    return node.text;
  }
}

template <typename T>
std::string json_of(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return json_quote(value);
  } else {
    return fmt::format("{}", value);
  }
}

/// The type that `access` finds in a Config, and the same without "optional".
template <typename Access>
using MemberOf = std::remove_cvref_t<std::invoke_result_t<const Access&, Config&>>;
template <typename Member>
using ValueOf = typename OptionalValue<Member>::type;
template <typename Member>
using Names = std::vector<std::pair<std::string, ValueOf<Member>>>;

/// An honoured key. `access` is a member of Config, or a generic lambda from one to a reference.
/// The JSON type follows from the member's; an optional member without value is not printed.
template <typename Access>
Key field(std::string path, NumberRange range, Access access) {
  using Member = MemberOf<Access>;
  using Value = ValueOf<Member>;
  if constexpr (std::is_same_v<Value, float>) {
    constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
    range.high = std::min(range.high, kMost);
  }
  Key key{.path = std::move(path), .kind = key_kind<Value>(), .range = range};
  key.set = [access](ConfigDraft& draft, const JsonNode& node) {
    std::invoke(access, draft.config) = value_of<Value>(node);
  };
  key.get = [access](const Config& config) -> std::string {
    const Member& member = std::invoke(access, config);
    if constexpr (OptionalValue<Member>::kOptional) {
      return member ? json_of(*member) : "";
    } else {
      return json_of(member);
    }
  };
  return key;
}

/// An honoured key whose value is one of a few names, each an enumerator.
template <typename Access>
Key choice(std::string path, Names<MemberOf<Access>> names, Access access) {
  Key key{.path = std::move(path), .kind = KeyKind::kString};
  for (const auto& [name, value] : names) {
    key.choices.push_back(name);
  }
  key.set = [access, names](ConfigDraft& draft, const JsonNode& node) {
    for (const auto& [name, value] : names) {
      if (name == node.text) std::invoke(access, draft.config) = value;
    }
  };
  key.get = [access, names](const Config& config) -> std::string {
    for (const auto& [name, value] : names) {
      if (value == std::invoke(access, config)) return json_quote(name);
    }
    return "";
  };
  return key;
}

/// Keys whose paths begin alike and whose values are members of one struct:
/// KeyBlock{"fp8.", &Config::fp8}.
template <typename Access>
struct KeyBlock {
  const char* prefix;
  Access access;  ///< to the struct, as field()'s

  template <typename Struct, typename Member>
  [[nodiscard]] constexpr auto to(Member Struct::*member) const {
    return [ outer = access, member ](auto& config) -> auto& {
      return std::invoke(outer, config).*member;
    };
  }
  template <typename Struct, typename Member>
  [[nodiscard]] Key field(const std::string& name,
                          NumberRange range,
                          Member Struct::*member) const {
    return dstrain::field(prefix + name, range, to(member));
  }
  template <typename Struct, typename Member>
  [[nodiscard]] Key choice(const std::string& name,
                           Names<Member> names,
                           Member Struct::*member) const {
    return dstrain::choice(prefix + name, std::move(names), to(member));
  }
};

/// A list of one or more integers from 1 to `most`; nothing where the value is something else.
inline std::optional<std::vector<std::int64_t>> positive_integers(const JsonNode& node,
                                                                  double most) {
  std::vector<std::int64_t> numbers;
  for (const JsonNode& item : node.items) {
    const bool fits = item.is(JsonNode::Kind::kNumber) && item.integer && *item.integer >= 1 &&
                      item.number <= most;
    if (!fits) return std::nullopt;
    numbers.push_back(*item.integer);
  }
  if (!node.is(JsonNode::Kind::kArray) || numbers.empty()) return std::nullopt;
  return numbers;
}

/// The largest integer, for counts in which it stands for "never" or "all".
inline constexpr auto kMostEver = static_cast<double>(std::numeric_limits<std::int64_t>::max());

inline Key no_effect(std::string path, KeyKind kind, std::string note) {
  return {.path = std::move(path),
          .kind = kind,
          .status = KeyStatus::kNoEffect,
          .note = std::move(note),
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
}

/// A key without effect, with a warning unless its value is one of `off` (JSON texts): DeepSpeed,
/// or the Python script that hands it the file, would do something.
inline Key not_done(std::string path, std::vector<std::string> off, std::string note) {
  Key key = no_effect(std::move(path), KeyKind::kAny, std::move(note));
  key.accepted = std::move(off);
  key.warns = true;
  return key;
}

/// The same for a block of another program, which is not looked into.
inline Key block_not_done(std::string path, std::string note) {
  Key key = not_done(std::move(path), {}, std::move(note));
  key.enabled_block = true;
  return key;
}

inline Key silent(std::string path, KeyKind kind = KeyKind::kAny) {
  return {.path = std::move(path),
          .kind = kind,
          .status = KeyStatus::kSilent,
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
}

/// Key::shape of a string that is not empty.
inline constexpr const char* kSomeText = R"({"type": "string", "minLength": 1})";

inline Key shaped(Key key, std::string shape) {
  key.shape = std::move(shape);
  return key;
}

/// A key that is refused unless its value is one of `accepted` (JSON texts), with which the feature
/// is off.
inline Key refused(std::string path, std::vector<std::string> accepted, std::string reason) {
  return {.path = std::move(path),
          .kind = KeyKind::kAny,
          .status = KeyStatus::kRefused,
          .accepted = std::move(accepted),
          .note = std::move(reason),
          .null_is_absent = true};
}

inline Key also_called(Key key, std::vector<std::string> aliases) {
  key.aliases = std::move(aliases);
  return key;
}
inline Key auto_is_default(Key key) {
  key.auto_rule = AutoRule::kDefault;
  return key;
}
inline Key auto_is_value(Key key) {
  key.auto_rule = AutoRule::kValue;
  return key;
}
/// Makes "auto" mean this JSON text, the default of Hugging Face's Trainer.
inline Key auto_is(Key key, std::string json) {
  key.auto_value = std::move(json);
  return key;
}
inline Key null_is_default(Key key) {
  key.null_is_absent = true;
  return key;
}
/// `what_to_write` completes the error "… is missing: ".
inline Key required(Key key, std::string what_to_write) {
  key.missing = std::move(what_to_write);
  return key;
}
inline Key only_for(Key key, std::string whom, KeyCondition applies) {
  key.applies_to = std::move(whom);
  key.applies = std::move(applies);
  return key;
}
inline Key default_from(Key key, std::string origin) {
  key.default_origin = std::move(origin);
  return key;
}

}  // namespace dstrain
