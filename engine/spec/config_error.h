// ConfigError: the user's config, command line or a file that it names is wrong. Exit code 2.
#pragma once

#include <stdexcept>

namespace dstrain {

/// what() is one sentence: where (file:line:column and JSON path, or the flag), what was found,
/// what was expected, and the nearest fix.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dstrain
