// check(condition, "format {}", …): an invariant that stays on in release builds.
// It throws InternalError with the place it was called from; wrong user input has its own
// exception types, made where the input is read.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace dstrain {

/// A broken invariant: a bug in dstrain, never the user's fault. Exit code 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void fail_check(const std::string& message, const std::source_location& where) {
  throw InternalError(fmt::format("{}:{}: {}", where.file_name(), where.line(), message));
}

/// A format string that remembers where it was written.
template <typename... Args>
struct CheckFormat {
  fmt::format_string<Args...> format;
  std::source_location where;

  template <typename Text>
  consteval CheckFormat(  // NOLINT(google-explicit-constructor): must convert from a literal
      const Text& text,
      std::source_location location = std::source_location::current())
      : format(text), where(location) {}
};

template <typename... Args>
void check(bool condition, CheckFormat<std::type_identity_t<Args>...> message, Args&&... args) {
  if (condition) [[likely]] {
    return;
  }
  fail_check(fmt::format(message.format, std::forward<Args>(args)...), message.where);
}

}  // namespace dstrain
