// What tests set and see of the emulated cuBLASLt, which proposes several algorithms that differ
// only in their time on the emulated clock (emulated_gpu.h). It refuses algorithms that belong to
// another version, or to another shape.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dstrain::emulated {

inline constexpr std::size_t kAlgorithms = 3;

struct CublasLtState {
  /// The time that each algorithm takes, in the order in which they are proposed.
  std::array<double, kAlgorithms> microseconds{10.0, 10.0, 10.0};
  double activation_microseconds = 0.0;  ///< more, in a product with an activation
  bool has_activations = true;           ///< false: proposes nothing for them
  std::size_t refused_when_run = 0;      ///< so many of the first algorithms, which it has proposed
  std::size_t version = 130'000;
  std::vector<std::size_t> ran;  ///< index of each product's algorithm
  std::vector<std::size_t> ran_activated;
  bool is_in_tf32 = false;  ///< the last product
};
/// The process's state.
CublasLtState& cublas_lt();

}  // namespace dstrain::emulated
