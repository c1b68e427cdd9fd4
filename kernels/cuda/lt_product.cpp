// cuBLASLt counts columns first, so it is given the transposed product. Memory that holds a
// row-major X [r][c] is, read column-major, Xᵀ with leading dimension c; hence
//     Cᵀ [n × m] = op(B)ᵀ [n × k] · op(A)ᵀ [k × m]
// with our B as its first operand and our A as its second:
//   B is [k][n]  →  it reads Bᵀ, n × k, which is what it needs: no transpose. [n][k] → transpose.
//   A is [m][k]  →  it reads Aᵀ, k × m, which is what it needs: no transpose. [k][m] → transpose.
//   C is [m][n]  →  it writes Cᵀ, n × m, leading dimension n; so is aux.
// So y = x · wᵀ is its "TN", dx = dy · w its "NN" and dw = dyᵀ · x its "NT". Its bias goes along
// the rows of Cᵀ: one number for each of our n columns.
#include "kernels/cuda/lt_product.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "kernels/core/check.h"
#include "kernels/cuda/scratch.h"

namespace dstrain {
namespace {

/// The size that NVIDIA recommends for Hopper; a few MiB would do on Ampere.
constexpr std::size_t kMostWorkspace = std::size_t{32} << 20;
/// The alignment of what an epilogue reads and writes beside C, for cuBLASLt's vector accesses.
constexpr std::uint32_t kEpilogueAlignment = 16;
constexpr std::int64_t kAuxColumns = 8;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kBF16     ? CUDA_R_16BF
         : dtype == DType::kF16    ? CUDA_R_16F
         : dtype == DType::kF8E4M3 ? CUDA_R_8F_E4M3
         : dtype == DType::kF8E5M2 ? CUDA_R_8F_E5M2
                                   : CUDA_R_32F;
}

DType dtype_of_b(const CudaProduct& product) {
  return product.b_scale == nullptr ? product.in : product.b_in;
}

/// The alignment of an address, as far as algorithms care.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  constexpr std::uintptr_t kMost = 256;
  return static_cast<std::uint32_t>(
      std::min(kMost, address == 0 ? kMost : address & (~address + 1)));
}

cublasLtEpilogue_t epilogue_of(const CudaProduct& product) {
  const bool bias = product.bias != nullptr;
  switch (product.activation) {
    case ProductActivation::kNone:
      break;
    case ProductActivation::kGelu:
      return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case ProductActivation::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

constexpr std::size_t kDigits = 2 * sizeof(std::uint64_t);  // of one word in hexadecimal

}  // namespace

bool can_add_bias(const CudaProduct& product) {
  return product.out == product.in && alignment_of(product.bias) >= kEpilogueAlignment;
}

bool can_be_activated(const CudaProduct& product) {
  return product.n % kAuxColumns == 0 && product.out == DType::kBF16 && can_add_bias(product) &&
         !product.adds &&
         std::min(alignment_of(product.aux), alignment_of(product.c)) >= kEpilogueAlignment;
}

ProductKey key_of(const CudaProduct& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .a_transposed = p.a_transposed,
          .b_transposed = p.b_transposed,
          .bias = p.bias != nullptr,
          .activation = p.activation,
          .in = p.in,
          .b_in = dtype_of_b(p),
          .out = p.out,
          .a_alignment = alignment_of(p.a),
          .b_alignment = alignment_of(p.b),
          .c_alignment = alignment_of(p.c),
          .bias_alignment = alignment_of(p.bias),
          .aux_alignment = alignment_of(p.aux),
          .a_stride = p.a_stride,
          .b_stride = p.b_stride,
          .c_stride = p.c_stride};
}

std::string name_of(const ProductKey& key) {
  const char* const activation = key.activation == ProductActivation::kGelu           ? " gelu"
                                 : key.activation == ProductActivation::kGeluBackward ? " dgelu"
                                                                                      : "";
  const std::string in = key.in == key.b_in
                             ? std::string(name_of(key.in))
                             : fmt::format("{}·{}", name_of(key.in), name_of(key.b_in));
  std::string strides;  // of dense operands there is no word
  for (const auto& [operand, stride] :
       {std::pair{'a', key.a_stride}, {'b', key.b_stride}, {'c', key.c_stride}}) {
    if (stride > 0) strides += fmt::format(" {}/{}", operand, stride);
  }
  return fmt::format("{} × {} × {} {}{} {} → {}{}{}{}, aligned to {} {} {} {} {}", key.m, key.n,
                     key.k, key.a_transposed ? 't' : 'n', key.b_transposed ? 't' : 'n', in,
                     name_of(key.out), key.bias ? " bias" : "", activation, strides,
                     key.a_alignment, key.b_alignment, key.c_alignment, key.bias_alignment,
                     key.aux_alignment);
}

std::string to_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) {
    text += fmt::format("{:016x}", word);
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> algorithm_from_text(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  if (text.size() != std::size(algorithm.data) * kDigits) {
    return std::nullopt;
  }
  const char* digits = text.data();
  for (std::uint64_t& word : algorithm.data) {
    const auto [end, error] = std::from_chars(digits, digits + kDigits, word, 16);
    if (error != std::errc() || end != digits + kDigits) {
      return std::nullopt;
    }
    digits = end;
  }
  return algorithm;
}

LtProduct::LtProduct(const CublasLt& lt, cublasLtHandle_t handle, const CudaProduct& p, bool tf32)
    : lt_(lt),
      handle_(handle),
      key_(key_of(p)),
      description_(describe(p, tf32)),
      first_(p.b_transposed ? layout(key_.b_in, p.k, p.n, p.b_stride)
                            : layout(key_.b_in, p.n, p.k, p.b_stride)),
      second_(p.a_transposed ? layout(p.in, p.m, p.k, p.a_stride)
                             : layout(p.in, p.k, p.m, p.a_stride)),
      result_(layout(p.out, p.n, p.m, p.c_stride)) {}

Owned<cublasLtMatmulDesc_t> LtProduct::describe(const CudaProduct& p, bool tf32) const {
  const bool short_operands = tf32 && p.in == DType::kF32;
  cublasLtMatmulDesc_t raw = nullptr;
  lt_.check(
      lt_.desc_create(&raw, short_operands ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                      CUDA_R_32F),
      "cublasLtMatmulDescCreate");
  Owned<cublasLtMatmulDesc_t> description(raw, lt_.desc_destroy);
  set(raw, CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose A");
  set(raw, CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose B");
  set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p), "epilogue");
  set_scales(raw, p);
  // Set here too, since proposals depend on how the addresses are aligned.
  if (p.bias != nullptr) {
    set(raw, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias, "bias");
  }
  if (p.activation != ProductActivation::kNone) {
    set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux, "aux");
    set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n, "aux's leading dimension");
  }
  return description;
}

template <typename Value>
void LtProduct::set(cublasLtMatmulDesc_t description,
                    cublasLtMatmulDescAttributes_t attribute,
                    const Value& value,
                    const char* name) const {
  if (const cublasStatus_t status = lt_.desc_set(description, attribute, &value, sizeof(value));
      status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    lt_.check(status, fmt::format("cublasLtMatmulDescSetAttribute ({})", name));
  }
}

/// Its first operand is our B. Hopper's tensor cores keep 13 digits of the largest number in a sum
/// of 8-bit products; cuBLASLt adds such sums in f32, as the faster way,
/// CUBLASLT_MATMUL_DESC_FAST_ACCUM, is left off, which is the default.
void LtProduct::set_scales(cublasLtMatmulDesc_t description, const CudaProduct& p) const {
  if (p.b_scale != nullptr) {
    set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scale, "scale of A");
    set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scale, "scale of B");
  }
}

/// A layout that is column-major, without gaps where `stride` is 0.
Owned<cublasLtMatrixLayout_t> LtProduct::layout(DType dtype,
                                                std::int64_t rows,
                                                std::int64_t columns,
                                                std::int64_t stride) const {
  cublasLtMatrixLayout_t raw = nullptr;
  lt_.check(lt_.layout_create(&raw, data_type(dtype), static_cast<std::uint64_t>(rows),
                              static_cast<std::uint64_t>(columns), stride == 0 ? rows : stride),
            "cublasLtMatrixLayoutCreate");
  return {raw, lt_.layout_destroy};
}

Owned<cublasLtMatmulPreference_t> LtProduct::preference() const {
  cublasLtMatmulPreference_t raw = nullptr;
  lt_.check(lt_.preference_create(&raw), "cublasLtMatmulPreferenceCreate");
  Owned<cublasLtMatmulPreference_t> preference(raw, lt_.preference_destroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    lt_.check(lt_.preference_set(raw, attribute, &value, sizeof(value)),
              "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key_.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key_.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key_.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key_.c_alignment);
  return preference;
}

std::vector<LtAlgorithm> LtProduct::proposals(int most) const {
  const Owned<cublasLtMatmulPreference_t> preferred = preference();
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      lt_.heuristic(handle_, description_.get(), first_.get(), second_.get(), result_.get(),
                    result_.get(), preferred.get(), most, results.data(), &found);
  // Its documentation allows either status for an activation that it does not have for these
  // dtypes.
  const bool activates = key_.activation != ProductActivation::kNone;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      (activates && status == CUBLAS_STATUS_INVALID_VALUE)) {
    return {};
  }
  lt_.check(status, fmt::format("cublasLtMatmulAlgoGetHeuristic for {}", name_of(key_)));
  std::vector<LtAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) {
      algorithms.push_back({.algorithm = result.algo, .workspace_bytes = result.workspaceSize});
    }
  }
  return algorithms;
}

std::optional<LtAlgorithm> LtProduct::accepted(const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      lt_.algorithm_check(handle_, description_.get(), first_.get(), second_.get(), result_.get(),
                          result_.get(), &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kMostWorkspace) {
    return std::nullopt;
  }
  return LtAlgorithm{.algorithm = algorithm, .workspace_bytes = result.workspaceSize};
}

bool LtProduct::run(const CudaProduct& product,
                    const LtAlgorithm& algorithm,
                    cudaStream_t stream) const {
  set_scales(description_.get(), product);
  if (product.bias != nullptr) {
    set(description_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias, "bias");
  }
  if (product.activation != ProductActivation::kNone) {
    set(description_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux, "aux");
  }
  const Scratch workspace(static_cast<std::int64_t>(algorithm.workspace_bytes), stream);
  const float one = 1.0F;
  const float beta = product.adds ? 1.0F : 0.0F;
  const cublasStatus_t status =
      lt_.matmul(handle_, description_.get(), &one, product.b, first_.get(), product.a,
                 second_.get(), &beta, product.c, result_.get(), product.c, result_.get(),
                 &algorithm.algorithm, workspace.as<void>(), algorithm.workspace_bytes, stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    return false;
  }
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {  // else the name costs more than the call
    lt_.check(status, fmt::format("cublasLtMatmul of {}", name_of(key_)));
  }
  return true;
}

}  // namespace dstrain
