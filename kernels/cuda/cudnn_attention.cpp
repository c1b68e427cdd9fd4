#include "kernels/cuda/cudnn_attention.h"

#include <limits>
#include <map>

#include "kernels/attention_kernels.h"
#include "kernels/attention_operands.h"
#include "kernels/cuda/cudnn_sdpa.h"
#include "kernels/cuda/scratch.h"

namespace dstrain {
namespace {

struct Planned {
  std::unique_ptr<CudnnPlan> plan;  // nullptr: why_none
  std::string why_none;
};

/// The part of packed rows that begins at a column.
const void* at_column(const void* rows, std::int64_t column) {
  constexpr std::int64_t kBytes = 2;
  return static_cast<const char*>(rows) + column * kBytes;
}

}  // namespace

struct CudnnAttention::Impl {
  explicit Impl(int index) : device(index) {}

  Planned make(const AttentionPass& pass);

  int device;
  Cudnn cudnn = open_cudnn();
  cudnnHandle_t handle = nullptr;
  std::map<AttentionPass, Planned> plans;
};

CudnnAttention::CudnnAttention(int device) : impl_(std::make_unique<Impl>(device)) {
  impl_->cudnn.check(impl_->cudnn.create(&impl_->handle), "cudnnCreate");
}

CudnnAttention::~CudnnAttention() {
  impl_->plans.clear();
  (void)impl_->cudnn.destroy(impl_->handle);
}

std::string CudnnAttention::name() const {
  return impl_->cudnn.name();
}

const std::string& CudnnAttention::why_not(const AttentionPass& pass) {
  auto found = impl_->plans.find(pass);
  if (found == impl_->plans.end()) {
    found = impl_->plans.emplace(pass, impl_->make(pass)).first;
  }
  return found->second.why_none;
}

/// A version of cuDNN that refuses a graph, or knows no plan for it, leaves the pass to others.
Planned CudnnAttention::Impl::make(const AttentionPass& pass) try {
  // On an H200 with cuDNN 9.19 the plan that sums in one order gave wrong gradients of keys, of
  // grouped queries and others, with no error; those of queries and values, and forward, were
  // right.
  if (pass.pass == Pass::kBackward) {
    return {.plan = nullptr, .why_none = "its gradients of keys were found to be wrong"};
  }
  CudnnGraph graph(cudnn);
  if (pass.pass == Pass::kForward) {
    sdpa::add_forward(graph, pass.shape, pass.dtype);
  } else {
    sdpa::add_backward(graph, pass.shape, pass.dtype);
  }
  Planned made;
  made.plan = graph.plan(describe_device(cudnn, device), kMostCudnnWorkspace, made.why_none);
  if (made.plan != nullptr) {
    made.why_none.clear();
  }
  return made;
} catch (const CudaError& error) {
  return {.plan = nullptr, .why_none = error.what()};
}

void CudnnAttention::run(const AttentionPass& pass,
                         const AttentionPointers& pointers,
                         cudaStream_t stream) {
  const AttentionShape& shape = pass.shape;
  const std::int64_t keys = shape.query_heads * shape.head_dim;
  const std::int64_t values = keys + shape.key_value_heads * shape.head_dim;
  const float scale = attention_scale(shape.head_dim);
  const float hidden = -std::numeric_limits<float>::infinity();
  std::vector<CudnnPlan::Binding> bindings{{sdpa::kQ, pointers.qkv},
                                           {sdpa::kK, at_column(pointers.qkv, keys)},
                                           {sdpa::kV, at_column(pointers.qkv, values)},
                                           {sdpa::kOut, pointers.out},
                                           {sdpa::kLogsumexp, pointers.logsumexp},
                                           {sdpa::kScale, &scale},
                                           {sdpa::kHidden, &hidden}};
  if (pass.pass == Pass::kBackward) {
    bindings.insert(bindings.end(), {{sdpa::kDOut, pointers.dout},
                                     {sdpa::kDelta, pointers.delta},
                                     {sdpa::kDQ, pointers.dqkv},
                                     {sdpa::kDK, at_column(pointers.dqkv, keys)},
                                     {sdpa::kDV, at_column(pointers.dqkv, values)}});
  }
  const Planned& planned = impl_->plans.at(pass);
  impl_->cudnn.check(impl_->cudnn.set_stream(impl_->handle, stream), "cudnnSetStream");
  const Scratch workspace(planned.plan->workspace_bytes(), stream);
  planned.plan->run(impl_->handle, bindings, workspace.as<void>());
}

}  // namespace dstrain
