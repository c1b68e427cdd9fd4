// cuBLASLt counts columns first, so it is given the transposed product. Memory that holds a
// row-major X [r][c] is, read column-major, Xᵀ with leading dimension c; hence
//     Cᵀ [n × m] = op(B)ᵀ [n × k] · op(A)ᵀ [k × m]
// with our B as its first operand and our A as its second:
//   B is [k][n]  →  it reads Bᵀ, n × k, which is what it needs: no transpose. [n][k] → transpose.
//   A is [m][k]  →  it reads Aᵀ, k × m, which is what it needs: no transpose. [k][m] → transpose.
//   C is [m][n]  →  it writes Cᵀ, n × m, leading dimension n.
// So y = x · wᵀ is its "TN", dx = dy · w its "NN" and dw = dyᵀ · x its "NT". Its bias goes along
// the rows of Cᵀ: one number for each of our n columns.
#include "kernels/cuda/matmul.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "kernels/core/check.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/scratch.h"

namespace dstrain {
namespace {

/// What NVIDIA recommends for Hopper; a few MiB would do on Ampere.
constexpr std::size_t kMostWorkspace = std::size_t{32} << 20;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

/// Of an address, as far as algorithms care.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  constexpr std::uintptr_t kMost = 256;
  return static_cast<std::uint32_t>(
      std::min(kMost, address == 0 ? kMost : address & (~address + 1)));
}

/// What an algorithm is chosen for. Not whether C is added to: that changes no choice.
struct Key {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, bias;
  DType in, out;
  std::uint32_t a_alignment, b_alignment, c_alignment;
  friend auto operator<=>(const Key&, const Key&) = default;
};

Key key_of(const CudaProduct& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .a_transposed = p.a_transposed,
          .b_transposed = p.b_transposed,
          .bias = p.bias != nullptr,
          .in = p.in,
          .out = p.out,
          .a_alignment = alignment_of(p.a),
          .b_alignment = alignment_of(p.b),
          .c_alignment = alignment_of(p.c)};
}

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

/// Everything of a product but its addresses.
struct Planned {
  Owned<cublasLtMatmulDesc_t> description;
  Owned<cublasLtMatrixLayout_t> first;   // our B
  Owned<cublasLtMatrixLayout_t> second;  // our A
  Owned<cublasLtMatrixLayout_t> result;
  cublasLtMatmulAlgo_t algorithm;
  std::size_t workspace_bytes;
};

}  // namespace

struct CudaMatmul::Impl {
  explicit Impl(const CudaMatmulOptions& chosen) : options(chosen) {}

  Planned plan(const CudaProduct& product);
  Owned<cublasLtMatmulDesc_t> describe(const CudaProduct& product);
  Owned<cublasLtMatrixLayout_t> layout(DType dtype, std::int64_t rows, std::int64_t columns);
  void choose_algorithm(const Key& key, Planned& planned);

  CudaMatmulOptions options;
  std::mutex mutex;            // of all below: two streams may be two threads
  std::optional<CublasLt> lt;  // opened by the first product
  cublasLtHandle_t handle = nullptr;
  std::map<Key, Planned> plans;
};

CudaMatmul::CudaMatmul(const CudaMatmulOptions& options) : impl_(std::make_unique<Impl>(options)) {}

CudaMatmul::~CudaMatmul() {
  impl_->plans.clear();
  if (impl_->handle != nullptr) {
    (void)impl_->lt->destroy(impl_->handle);
  }
}

void CudaMatmul::run(const CudaProduct& product, cudaStream_t stream) {
  check(product.m > 0 && product.n > 0 && product.k > 0, "a product of {} × {} × {}", product.m,
        product.n, product.k);
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->lt.has_value()) {
    impl_->lt = open_cublas_lt();
  }
  const CublasLt& lt = *impl_->lt;
  if (impl_->handle == nullptr) {
    lt.check(lt.create(&impl_->handle), "cublasLtCreate");
  }
  const Key key = key_of(product);
  auto found = impl_->plans.find(key);
  if (found == impl_->plans.end()) {
    found = impl_->plans.emplace(key, impl_->plan(product)).first;
  }
  const Planned& planned = found->second;
  if (product.bias != nullptr) {
    lt.check(lt.desc_set(planned.description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                         &product.bias, sizeof(product.bias)),
             "cublasLtMatmulDescSetAttribute (bias)");
  }
  const Scratch workspace(static_cast<std::int64_t>(planned.workspace_bytes), stream);
  const float one = 1.0F;
  const float beta = product.adds ? 1.0F : 0.0F;
  lt.check(lt.matmul(impl_->handle, planned.description.get(), &one, product.b, planned.first.get(),
                     product.a, planned.second.get(), &beta, product.c, planned.result.get(),
                     product.c, planned.result.get(), &planned.algorithm, workspace.as<void>(),
                     planned.workspace_bytes, stream),
           fmt::format("cublasLtMatmul of {} × {} × {} in {}", product.m, product.n, product.k,
                       name_of(product.in)));
}

Planned CudaMatmul::Impl::plan(const CudaProduct& p) {
  Planned planned{.description = describe(p),
                  .first = p.b_transposed ? layout(p.in, p.k, p.n) : layout(p.in, p.n, p.k),
                  .second = p.a_transposed ? layout(p.in, p.m, p.k) : layout(p.in, p.k, p.m),
                  .result = layout(p.out, p.n, p.m),
                  .algorithm = {},
                  .workspace_bytes = 0};
  choose_algorithm(key_of(p), planned);
  return planned;
}

Owned<cublasLtMatmulDesc_t> CudaMatmul::Impl::describe(const CudaProduct& p) {
  const bool tf32 = options.tf32 && p.in == DType::kF32;
  cublasLtMatmulDesc_t raw = nullptr;
  lt->check(
      lt->desc_create(&raw, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "cublasLtMatmulDescCreate");
  Owned<cublasLtMatmulDesc_t> description(raw, lt->desc_destroy);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value, const char* name) {
    lt->check(lt->desc_set(raw, attribute, &value, sizeof(value)),
              fmt::format("cublasLtMatmulDescSetAttribute ({})", name));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose A");
  set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose B");
  if (p.bias != nullptr) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, "epilogue");
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias, "bias");
  }
  return description;
}

/// Column-major, without gaps.
Owned<cublasLtMatrixLayout_t> CudaMatmul::Impl::layout(DType dtype,
                                                       std::int64_t rows,
                                                       std::int64_t columns) {
  cublasLtMatrixLayout_t raw = nullptr;
  lt->check(lt->layout_create(&raw, data_type(dtype), static_cast<std::uint64_t>(rows),
                              static_cast<std::uint64_t>(columns), rows),
            "cublasLtMatrixLayoutCreate");
  return {raw, lt->layout_destroy};
}

/// The first that cuBLASLt proposes, so that the same shape always gives the same bits. Sums that
/// are split over blocks are added in f32 in the workspace, in a fixed order: never in the result,
/// whose dtype may be short.
void CudaMatmul::Impl::choose_algorithm(const Key& key, Planned& planned) {
  cublasLtMatmulPreference_t raw = nullptr;
  lt->check(lt->preference_create(&raw), "cublasLtMatmulPreferenceCreate");
  const Owned<cublasLtMatmulPreference_t> preference(raw, lt->preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    lt->check(lt->preference_set(raw, attribute, &value, sizeof(value)),
              "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  lt->check(
      lt->heuristic(handle, planned.description.get(), planned.first.get(), planned.second.get(),
                    planned.result.get(), planned.result.get(), raw, 1, &result, &found),
      fmt::format("cublasLtMatmulAlgoGetHeuristic for {} × {} × {} from {} to {}", key.m, key.n,
                  key.k, name_of(key.in), name_of(key.out)));
  check(found == 1, "cuBLASLt has no algorithm for {} × {} × {} from {} to {}", key.m, key.n, key.k,
        name_of(key.in), name_of(key.out));
  planned.algorithm = result.algo;
  planned.workspace_bytes = result.workspaceSize;
}

}  // namespace dstrain
