// bf16 products by oneDNN's matmul primitives, which are made once for each kind of call and kept
// with their memory objects, so that a call is a look-up and an execution and allocates nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/core/dtype.h"
#include "kernels/cpu/matmul_memory.h"
#include "kernels/cpu/matmul_product.h"

namespace dstrain {

/// The layout of an operand in memory: as it is read, transposed, or packed (matmul_pack.h).
enum class MatmulLayout : std::uint8_t { kRows, kTransposed, kPacked };

/// C[m, n] = or += A[m, k] · B[k, n] + bias[n]; A, B and bias bf16, C bf16 or f32.
struct DnnlMatmulKind {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  MatmulLayout a = MatmulLayout::kRows;
  MatmulLayout b = MatmulLayout::kRows;
  bool bias = false;
  bool add = false;
  DType c_dtype = DType::kBF16;

  friend auto operator<=>(const DnnlMatmulKind&, const DnnlMatmulKind&) = default;
};

class DnnlMatmuls {
 public:
  struct Call;

  /// Calls run with `threads_of_a_call` OpenMP threads, and at most `workers` run at once.
  DnnlMatmuls(int threads_of_a_call, int workers);

  /// nullptr where oneDNN has no kernel for this on this processor, or only plain loops. Not to be
  /// called while calls run. The pointer stays valid.
  Call* find(const DnnlMatmulKind& kind);

  /// `worker` in [0, workers): no two calls at once may share one.
  void run(Call& call, int worker, const BF16* a, const BF16* b, const BF16* bias, void* c) const;

  struct Arguments {
    dnnl::memory a, b, bias, c, scratch;
    std::unordered_map<int, dnnl::memory> by_index;  // the same objects
  };
  struct Call {
    dnnl::matmul primitive;
    std::vector<Arguments> of_worker;
  };

 private:
  std::optional<Call> make(const DnnlMatmulKind& kind);

  int threads_of_a_call_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::vector<GrowingBuffer> scratch_of_worker_;
  std::map<DnnlMatmulKind, std::optional<Call>> calls_;
};

}  // namespace dstrain
