#include "kernels/cuda/matmul.h"

#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/cuda/algorithm_file.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/lt_product.h"
#include "kernels/cuda/timing.h"

namespace dstrain {
namespace {

/// The number of proposals that are timed. cuBLASLt sorts them by what it expects, and is rarely
/// far off.
constexpr int kProposals = 8;
/// An algorithm has to be this much faster than one proposed before it: a smaller gain is noise,
/// which would let two runs of the same config differ for no reason.
constexpr double kWorthIt = 0.98;
/// The words in the file for an activation that is computed after its product, and for a product
/// that no algorithm computes.
constexpr const char* kSeparately = "separately";
constexpr const char* kNoneRuns = "none";

/// Device memory for a moment, straight from the driver and back: the pool would keep it.
class Loan {
 public:
  explicit Loan(std::int64_t bytes) {
    if (cudaMalloc(&data_, static_cast<std::size_t>(bytes)) != cudaSuccess) {
      (void)cudaGetLastError();  // there is none, which the borrower asks about
      data_ = nullptr;
    }
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() { (void)cudaFree(data_); }
  [[nodiscard]] void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

struct Planned {
  LtProduct product;
  std::vector<LtAlgorithm> algorithms;  // the one to run, then those to try; none: separately
};

/// "NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors, cuBLASLt 130200".
std::string device_name(int device, const CublasLt& lt) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return fmt::format("{}, sm_{}{}, {} multiprocessors, cuBLASLt {}", properties.name,
                     properties.major, properties.minor, properties.multiProcessorCount,
                     lt.version());
}

}  // namespace

struct CudaMatmul::Impl {
  Impl(int device_index, const CudaMatmulOptions& chosen) : device(device_index), options(chosen) {}

  void open();
  Planned& planned(const CudaProduct& product,
                   const std::function<void()>& separately,
                   cudaStream_t stream);
  std::optional<LtAlgorithm> kept(const CudaProduct& product,
                                  const LtProduct& described,
                                  const std::function<void()>& separately,
                                  cudaStream_t stream);
  ChosenAlgorithm fastest(const CudaProduct& product,
                          const LtProduct& described,
                          const std::function<void()>& separately,
                          cudaStream_t stream);

  int device;
  CudaMatmulOptions options;
  /// Guards all below, since two streams may be two threads. It is recursive, as what is computed
  /// separately has products of its own.
  std::recursive_mutex mutex;
  std::optional<CublasLt> lt;  // opened by the first product
  cublasLtHandle_t handle = nullptr;
  std::unique_ptr<AlgorithmFile> file;
  std::map<std::pair<ProductKey, bool>, Planned> plans;  // by shape, and whether it is routed
};

CudaMatmul::CudaMatmul(int device, const CudaMatmulOptions& options)
    : impl_(std::make_unique<Impl>(device, options)) {}

CudaMatmul::~CudaMatmul() {
  impl_->plans.clear();
  if (impl_->handle != nullptr) {
    (void)impl_->lt->destroy(impl_->handle);
  }
}

void CudaMatmul::run(const CudaProduct& product, cudaStream_t stream) {
  run_activated(product, {}, stream);
}

void CudaMatmul::run_activated(const CudaProduct& product,
                               const std::function<void()>& separately,
                               cudaStream_t stream) {
  check(product.m > 0 && product.n > 0 && product.k > 0, "a product of {} × {} × {}", product.m,
        product.n, product.k);
  const std::lock_guard lock(impl_->mutex);
  impl_->open();
  Planned& planned = impl_->planned(product, separately, stream);
  std::vector<LtAlgorithm>& algorithms = planned.algorithms;
  while (!algorithms.empty()) {
    if (planned.product.run(product, algorithms.front(), stream)) {
      return;
    }
    algorithms.erase(algorithms.begin());
  }
  if (!separately) {
    throw CudaError(fmt::format("cuBLASLt has no algorithm for {}", name_of(key_of(product))));
  }
  separately();
}

void CudaMatmul::Impl::open() {
  if (handle != nullptr) {
    return;
  }
  if (!lt.has_value()) {
    lt = open_cublas_lt();
  }
  if (!options.algorithms_file.empty() && file == nullptr) {
    file = std::make_unique<AlgorithmFile>(options.algorithms_file, device_name(device, *lt));
  }
  lt->check(lt->create(&handle), "cublasLtCreate");
}

Planned& CudaMatmul::Impl::planned(const CudaProduct& product,
                                   const std::function<void()>& separately,
                                   cudaStream_t stream) {
  const std::pair key{key_of(product), product.is_routed};
  if (const auto found = plans.find(key); found != plans.end()) {
    return found->second;
  }
  LtProduct described(*lt, handle, product, options.tf32);
  std::vector<LtAlgorithm> algorithms;
  if (file != nullptr && !product.is_routed) {
    if (const auto one = kept(product, described, separately, stream)) {
      algorithms.push_back(*one);
    }
  } else if (product.activation == ProductActivation::kNone) {
    // The first that runs, always, so that the same shape gives the same bits.
    algorithms = described.proposals(kProposals);
  }
  return plans.emplace(key, Planned{std::move(described), std::move(algorithms)}).first->second;
}

std::optional<LtAlgorithm> CudaMatmul::Impl::kept(const CudaProduct& product,
                                                  const LtProduct& described,
                                                  const std::function<void()>& separately,
                                                  cudaStream_t stream) {
  // The result also depends on the options, which are the same throughout a process.
  const std::string name =
      name_of(key_of(product)) + (options.tf32 && product.in == DType::kF32 ? ", tf32" : "");
  const ChosenAlgorithm chosen =
      file->choose(name, [&] { return fastest(product, described, separately, stream); });
  if (chosen.name == kNoneRuns || (separately && chosen.name == kSeparately)) {
    return std::nullopt;
  }
  const auto algorithm = algorithm_from_text(chosen.name);
  const auto accepted = algorithm ? described.accepted(*algorithm) : std::nullopt;
  if (!accepted) {
    throw CudaError(fmt::format(
        "{} gives \"{}\" for {}, which this cuBLASLt cannot run: remove the line, and the product "
        "is timed again",
        file->path(), chosen.name, name));
  }
  return accepted;
}

/// Times products into C where that is overwritten anyway; where it is added to, into borrowed
/// memory. If there is none, nothing is timed, as the run would not have that memory either.
ChosenAlgorithm CudaMatmul::Impl::fastest(const CudaProduct& product,
                                          const LtProduct& described,
                                          const std::function<void()>& separately,
                                          cudaStream_t stream) {
  const std::vector<LtAlgorithm> proposals = described.proposals(kProposals);
  std::vector<std::string> names;
  std::vector<std::function<void()>> ways;
  CudaProduct timed = product;
  const std::int64_t row = product.c_stride == 0 ? product.n : product.c_stride;
  const Loan result(product.adds ? product.m * row * size_of(product.out) : 0);
  timed.c = product.adds ? result.get() : product.c;
  if (separately) {
    names.emplace_back(kSeparately);
    ways.push_back(separately);
  }
  for (const LtAlgorithm& proposal : proposals) {
    if (timed.c == nullptr || described.run(timed, proposal, stream)) {
      names.push_back(to_text(proposal.algorithm));
      ways.emplace_back([&] { (void)described.run(timed, proposal, stream); });
    }
  }
  if (timed.c == nullptr || ways.size() <= 1) {
    return {.name = names.empty() ? kNoneRuns : names.front()};
  }
  const std::vector<double> microseconds = microseconds_of(ways, stream);
  std::size_t best = 0;
  for (std::size_t i = 1; i < ways.size(); ++i) {
    best = microseconds[i] < kWorthIt * microseconds[best] ? i : best;
  }
  return {.name = names[best], .microseconds = microseconds[best]};
}

}  // namespace dstrain
