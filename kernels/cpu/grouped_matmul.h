// Products of the rows of several experts, each with a matrix of its own, shared out over threads.
//
// A product is cut by rows, and each thread computes parts alone, so that results do not depend on
// how many there are. But for bf16 a kernel is made for each size, which would be a new one in
// every step: there the sizes of parts are few: multiples of 128 and of 16, and what is left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/vector/loops.h"
#include "kernels/matrix_product.h"

namespace dstrain {

class GroupedMatmul {
 public:
  /// A product that may run at any time.
  struct Task {
    MatrixProduct product;
    bool sums = false;  ///< what its rows give is added up
  };
  GroupedMatmul(int threads, const VectorLoops& loops);

  /// Calls visit(first, size) for the parts of `rows` rows, of at most `most`, in which products of
  /// a dtype are computed.
  template <typename Visit>
  static void for_each_part(std::int64_t rows, std::int64_t most, DType dtype, Visit&& visit);
  /// Forgets what was added before.
  void begin() { tasks_.clear(); }
  /// Checks the product, and has it run by run().
  void add(const Task& task);
  void run();

 private:
  static constexpr std::int64_t kUnit = 16;
  static constexpr std::int64_t kLargeUnit = 128;

  static void run(CpuMatmul& matmul, const Task& task);

  int threads_;
  std::vector<std::unique_ptr<CpuMatmul>> of_worker_;  ///< of one thread each
  std::vector<Task> tasks_;
};

template <typename Visit>
void GroupedMatmul::for_each_part(std::int64_t rows,
                                  std::int64_t most,
                                  DType dtype,
                                  Visit&& visit) {
  std::int64_t first = 0;
  const auto cut = [&](std::int64_t unit) {
    while (rows - first >= unit) {
      const std::int64_t size = std::min(most, (rows - first) / unit * unit);
      visit(first, size);
      first += size;
    }
  };
  if (dtype == DType::kBF16) {
    cut(kLargeUnit);
    cut(kUnit);
  }
  cut(1);
}

}  // namespace dstrain
