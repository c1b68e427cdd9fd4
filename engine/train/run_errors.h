// Errors that end a run from within: numbers that training cannot continue with.
#pragma once

#include <stdexcept>

namespace dstrain {

/// Loss or gradients are not finite and the run cannot continue. Exit code 7.
class NumericalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Copies of the training state that must be the same are not: memory has changed by itself. Exit
/// code 10.
class StateCorrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dstrain
