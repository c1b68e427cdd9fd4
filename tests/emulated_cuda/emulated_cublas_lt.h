// What tests set and see of the emulated cuBLASLt, which proposes several algorithms that differ in
// nothing but their time on the emulated clock (emulated_gpu.h). Those that it would run on another
// version, or for another shape, it refuses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dstrain::emulated {

inline constexpr std::size_t kAlgorithms = 3;

struct CublasLtState {
  /// What each algorithm takes, in the order in which they are proposed.
  std::array<double, kAlgorithms> microseconds{10.0, 10.0, 10.0};
  double activation_microseconds = 0.0;  ///< more, in a product with an activation
  bool has_activations = true;           ///< false: proposes nothing for them
  std::size_t version = 130'000;
  std::vector<std::size_t> ran;  ///< index of each product's algorithm
  std::vector<std::size_t> ran_activated;
  bool is_in_tf32 = false;  ///< the last product
};
/// Of the process.
CublasLtState& cublas_lt();

}  // namespace dstrain::emulated
