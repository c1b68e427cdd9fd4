// LtProduct: a matrix product as cuBLASLt describes it, everything but its addresses: made once per
// shape and run many times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/cuda_product.h"

namespace dstrain {

/// The facts that an algorithm is chosen by. Whether C is added to is not among them, as it changes
/// no choice.
struct ProductKey {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, bias;
  ProductActivation activation;
  DType in, b_in, out;
  std::uint32_t a_alignment, b_alignment, c_alignment, bias_alignment, aux_alignment;
  std::int64_t a_stride, b_stride, c_stride;
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};
ProductKey key_of(const CudaProduct& product);
/// "8192 × 3072 × 768 nt bf16 → bf16 bias gelu, aligned to 256 256 256 256 256": the name for it in
/// files, so it must not change.
std::string name_of(const ProductKey& key);

struct LtAlgorithm {
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};
/// cuBLASLt documents that the algorithm may be written down and used again with the same version.
std::string to_text(const cublasLtMatmulAlgo_t& algorithm);
std::optional<cublasLtMatmulAlgo_t> algorithm_from_text(const std::string& text);

/// Owner of one of cuBLASLt's opaque pointers.
template <typename Handle>
class Owned {
 public:
  using Destroy = cublasStatus_t (*)(Handle);
  Owned(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  Owned(Owned&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (handle_ != nullptr) {
      (void)destroy_(handle_);
    }
  }
  [[nodiscard]] Handle get() const { return handle_; }

 private:
  Handle handle_;
  Destroy destroy_;
};

class LtProduct {
 public:
  /// The library and the handle must outlive it.
  LtProduct(const CublasLt& lt, cublasLtHandle_t handle, const CudaProduct& product, bool tf32);

  /// cuBLASLt's best guesses, the best first, at most `most`. Empty where it cannot compute this
  /// product. Sums that are split over blocks are added in f32 in the workspace, in a fixed order,
  /// never in the result, whose dtype may be short.
  [[nodiscard]] std::vector<LtAlgorithm> proposals(int most) const;
  /// An algorithm that was written down; nothing where it does not compute this product.
  [[nodiscard]] std::optional<LtAlgorithm> accepted(const cublasLtMatmulAlgo_t& algorithm) const;
  /// Runs with the product's addresses; its shape must be the constructor's. False, and nothing is
  /// done, where cuBLASLt cannot run an algorithm that it has proposed.
  [[nodiscard]] bool run(const CudaProduct& product,
                         const LtAlgorithm& algorithm,
                         cudaStream_t stream) const;

 private:
  [[nodiscard]] Owned<cublasLtMatmulDesc_t> describe(const CudaProduct& product, bool tf32) const;
  void set_scales(cublasLtMatmulDesc_t description, const CudaProduct& product) const;
  [[nodiscard]] Owned<cublasLtMatrixLayout_t> layout(DType dtype,
                                                     std::int64_t rows,
                                                     std::int64_t columns,
                                                     std::int64_t stride) const;
  [[nodiscard]] Owned<cublasLtMatmulPreference_t> preference() const;
  template <typename Value>
  void set(cublasLtMatmulDesc_t description,
           cublasLtMatmulDescAttributes_t attribute,
           const Value& value,
           const char* name) const;

  const CublasLt& lt_;
  cublasLtHandle_t handle_;
  ProductKey key_;
  Owned<cublasLtMatmulDesc_t> description_;
  Owned<cublasLtMatrixLayout_t> first_;   // our B
  Owned<cublasLtMatrixLayout_t> second_;  // our A
  Owned<cublasLtMatrixLayout_t> result_;
};

}  // namespace dstrain
