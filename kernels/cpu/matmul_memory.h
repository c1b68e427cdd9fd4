// Shared by the matrix products: their scratch memory, and the number of threads that a library
// takes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include <omp.h>
#include <sys/mman.h>

#include "kernels/core/check.h"

namespace dstrain {

/// Scratch memory that grows and stays, on huge pages where the kernel gives them: translating the
/// addresses of small ones costs a product up to a fifth.
class GrowingBuffer {
 public:
  /// Returns at least this much memory, whose contents may be lost.
  template <typename T>
  T* grow(std::int64_t elements) {
    const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(T));
    if (bytes > bytes_) {
      constexpr std::int64_t kHugePage = 2 << 20;
      const auto rounded =
          static_cast<std::size_t>((bytes + kHugePage - 1) / kHugePage * kHugePage);
      bytes_ = 0;
      data_.reset();
      data_.reset(std::aligned_alloc(kHugePage, rounded));
      check(data_ != nullptr, "no memory for {} bytes of scratch of a matrix product", rounded);
      madvise(data_.get(), rounded, MADV_HUGEPAGE);  // a refusal costs only time
      bytes_ = static_cast<std::int64_t>(rounded);
    }
    return get<T>();
  }
  template <typename T>
  [[nodiscard]] T* get() const {
    return static_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::int64_t bytes_ = 0;
};

/// Sets how many OpenMP threads a library takes inside a scope. OpenMP keeps this number for each
/// calling thread, so ranks that are threads of one process do not disturb one another.
class OpenMpTeam {
 public:
  explicit OpenMpTeam(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  OpenMpTeam(const OpenMpTeam&) = delete;
  OpenMpTeam& operator=(const OpenMpTeam&) = delete;
  ~OpenMpTeam() { omp_set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace dstrain
