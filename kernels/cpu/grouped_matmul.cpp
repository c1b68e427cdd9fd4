#include "kernels/cpu/grouped_matmul.h"

#include <tuple>

#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain {

GroupedMatmul::GroupedMatmul(int threads, const VectorLoops& loops) : threads_(threads) {
  for (int worker = 0; worker < threads; ++worker) {
    of_worker_.push_back(std::make_unique<CpuMatmul>(1, loops));
  }
}

void GroupedMatmul::add(const Task& task) {
  static_cast<void>(form_of(task.product));
  tasks_.push_back(task);
}

// The largest first, so that the last ones to end are small.
void GroupedMatmul::run() {
  const auto rank = [](const Task& task) {
    const ProductForm form = form_of(task.product);
    return std::tuple(-form.m * form.n * form.k, task.product.c.data());
  };
  for (const Task& task : tasks_) {
    TraceSpan::add_work({.flops = flops_of(form_of(task.product))});
  }
  std::sort(tasks_.begin(), tasks_.end(),
            [&](const Task& a, const Task& b) { return rank(a) < rank(b); });
  parallel_for(
      threads_, static_cast<std::int64_t>(tasks_.size()), [&](std::int64_t task, int worker) {
        run(*of_worker_[static_cast<std::size_t>(worker)], tasks_[static_cast<std::size_t>(task)]);
      });
}

void GroupedMatmul::run(CpuMatmul& matmul, const Task& task) {
  constexpr std::int64_t kMostTerms = 1024;  // each part is a pass over the sums
  const std::int64_t rows = task.product.a.dim(0);
  if (!task.sums || rows == 0) {
    matmul.run(task.product);
    return;
  }
  MatrixProduct part = task.product;
  for_each_part(rows, kMostTerms, part.a.dtype(), [&](std::int64_t first, std::int64_t size) {
    part.a = task.product.a.rows(first, first + size);
    part.b = task.product.b.rows(first, first + size);
    matmul.run(part);
    part.write = Write::kAdd;
  });
}

}  // namespace dstrain
