// The problems of one config, gathered so that the user learns all of them at once. A step that
// needs a value which a problem has spoilt is left out, as its complaint would only follow from the
// first mistake.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/config_error.h"

namespace dstrain {

class ConfigProblems {
 public:
  /// Adds a problem; its `path` can no longer be relied on.
  void add(ConfigProblem problem);
  /// Adds a problem of an unknown key, which spoils nothing but the key that was meant, if any.
  void add_unknown(ConfigProblem problem, std::string meant);

  /// Runs `step`; a ConfigError that it throws joins the list. True if it threw nothing.
  template <typename Step>
  bool attempt(const Step& step) {
    try {
      step();
      return true;
    } catch (const ConfigError& error) {
      for (const ConfigProblem& problem : error.problems())
        add(problem);
      return false;
    }
  }

  [[nodiscard]] bool empty() const { return problems_.empty(); }
  /// Whether the value at `path`, something in it or the block around it is spoilt.
  [[nodiscard]] bool spoil(std::string_view path) const;
  [[nodiscard]] bool spoil_any(std::initializer_list<std::string_view> paths) const;

  /// The problems in the order of `file`, then of other files, the command line, and what is
  /// missing.
  [[nodiscard]] std::vector<ConfigProblem> in_order(const std::string& file) const;
  void throw_if_any(const std::string& file) const;

 private:
  std::vector<ConfigProblem> problems_;
  std::vector<std::string> spoilt_;
};

}  // namespace dstrain
