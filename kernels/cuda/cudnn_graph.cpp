#include "kernels/cuda/cudnn_graph.h"

#include <utility>

#include <fmt/format.h>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

cudnnDataType_t data_type(DType dtype) {
  return dtype == DType::kBF16  ? CUDNN_DATA_BFLOAT16
         : dtype == DType::kF16 ? CUDNN_DATA_HALF
                                : CUDNN_DATA_FLOAT;
}

CudnnGraph::Dims dense(const CudnnGraph::Dims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

bool adds_in_any_order(const Cudnn& cudnn, const CudnnDescriptor& engine) {
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  std::int64_t count = 0;
  cudnn.check(
      cudnn.get_attribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                          static_cast<std::int64_t>(notes.size()), &count, notes.data()),
      "cudnnBackendGetAttribute (numerical notes)");
  for (std::int64_t i = 0; i < count; ++i) {
    if (notes[static_cast<std::size_t>(i)] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) {
      return true;
    }
  }
  return false;
}

}  // namespace

CudnnPlan::CudnnPlan(const Cudnn& cudnn, CudnnDescriptor plan)
    : cudnn_(&cudnn), plan_(std::move(plan)) {
  std::int64_t count = 0;
  cudnn.check(cudnn.get_attribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                  CUDNN_TYPE_INT64, 1, &count, &workspace_bytes_),
              "cudnnBackendGetAttribute (workspace size)");
}

void CudnnPlan::run(cudnnHandle_t handle,
                    std::span<const Binding> bindings,
                    void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<const void*> data;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.id);
    data.push_back(binding.data);
  }
  CudnnDescriptor pack(*cudnn_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
           std::span<const std::int64_t>(ids));
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           std::span<const void* const>(data));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize("variant pack");
  cudnn_->check(cudnn_->execute(handle, plan_.get(), pack.get()), "cudnnBackendExecute");
}

CudnnGraph::Tensor CudnnGraph::memory(std::int64_t id,
                                      DType dtype,
                                      const Dims& dims,
                                      const Dims& strides) {
  return add_tensor(data_type(dtype), dims, strides,
                    {.id = id, .intermediate = false, .scalar = false});
}

CudnnGraph::Tensor CudnnGraph::scalar(std::int64_t id) {
  return add_tensor(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1},
                    {.id = id, .intermediate = false, .scalar = true});
}

CudnnGraph::Tensor CudnnGraph::intermediate(cudnnDataType_t type, const Dims& dims) {
  return intermediate(type, dims, dense(dims));
}

CudnnGraph::Tensor CudnnGraph::intermediate(cudnnDataType_t type,
                                            const Dims& dims,
                                            const Dims& strides) {
  constexpr std::int64_t kFirstOwnId = 1'000'000;  // callers' are smaller
  const auto id = kFirstOwnId + static_cast<std::int64_t>(tensors_.size());
  return add_tensor(type, dims, strides, {.id = id, .intermediate = true, .scalar = false});
}

CudnnGraph::Tensor CudnnGraph::add_tensor(cudnnDataType_t type,
                                          const Dims& dims,
                                          const Dims& strides,
                                          const Place& place) {
  constexpr std::int64_t kAlignment = 16;  // bytes; flash_takes asks for the same
  CudnnDescriptor tensor(cudnn_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, place.id);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(dims));
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const std::int64_t>(strides));
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, place.intermediate);
  tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, place.scalar);
  tensor.finalize("tensor");
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

void CudnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  CudnnDescriptor product(cudnn_, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  product.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  product.finalize("matmul");
  CudnnDescriptor operation(cudnn_, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
  operation.finalize("operation matmul");
  kept_.push_back(std::move(product));
  operations_.push_back(std::move(operation));
}

CudnnDescriptor CudnnGraph::describe_pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math) {
  CudnnDescriptor pointwise(cudnn_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pointwise.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  pointwise.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math);
  return pointwise;
}

void CudnnGraph::add_pointwise(CudnnDescriptor pointwise, const PointwiseOperands& operands) {
  pointwise.finalize("pointwise");
  CudnnDescriptor operation(cudnn_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(operands.x));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(operands.y));
  if (operands.b) {
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(*operands.b));
  }
  if (operands.where) {
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(*operands.where));
  }
  operation.finalize("operation pointwise");
  kept_.push_back(std::move(pointwise));
  operations_.push_back(std::move(operation));
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y) {
  add_pointwise(describe_pointwise(mode, CUDNN_DATA_FLOAT), {.x = x, .b = {}, .where = {}, .y = y});
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y) {
  add_pointwise(describe_pointwise(mode, CUDNN_DATA_FLOAT), {.x = x, .b = b, .where = {}, .y = y});
}

void CudnnGraph::at_least(Tensor a, Tensor b, Tensor y) {
  add_pointwise(describe_pointwise(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN),
                {.x = a, .b = b, .where = {}, .y = y});
}

void CudnnGraph::index(Tensor x, std::int64_t axis, Tensor y) {
  CudnnDescriptor pointwise = describe_pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT);
  pointwise.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  add_pointwise(std::move(pointwise), {.x = x, .b = {}, .where = {}, .y = y});
}

void CudnnGraph::select(Tensor x, Tensor otherwise, Tensor where, Tensor y) {
  add_pointwise(describe_pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT),
                {.x = x, .b = otherwise, .where = where, .y = y});
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t kind, Tensor x, Tensor y) {
  CudnnDescriptor reduction(cudnn_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, kind);
  reduction.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  reduction.finalize("reduction");
  CudnnDescriptor operation(cudnn_, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
  operation.finalize("operation reduction");
  kept_.push_back(std::move(reduction));
  operations_.push_back(std::move(operation));
}

void CudnnGraph::reshape(Tensor x, Tensor y) {
  CudnnDescriptor operation(cudnn_, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
  operation.finalize("operation reshape");
  operations_.push_back(std::move(operation));
}

CudnnDescriptor CudnnGraph::describe_operations() {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& operation : operations_) {
    raw.push_back(operation.get());
  }
  CudnnDescriptor graph(cudnn_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            std::span<const cudnnBackendDescriptor_t>(raw));
  graph.finalize("operation graph");
  return graph;
}

std::unique_ptr<CudnnPlan> CudnnGraph::plan(const CudnnDescriptor& device,
                                            std::int64_t most_workspace_bytes,
                                            std::string& why_none) {
  constexpr std::int64_t kMostProposals = 16;
  const CudnnDescriptor graph = describe_operations();
  CudnnDescriptor heuristics(cudnn_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  if (const cudnnStatus_t status = cudnn_.finalize(heuristics.get());
      status != CUDNN_STATUS_SUCCESS) {
    why_none = cudnn_.explain(status);
    return nullptr;
  }
  why_none = "its heuristics propose nothing";
  for (const CudnnDescriptor& configuration :
       get_descriptors(cudnn_, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                       CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMostProposals)) {
    const std::vector<CudnnDescriptor> engines = get_descriptors(
        cudnn_, configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
    if (engines.empty() || adds_in_any_order(cudnn_, engines.front())) {
      why_none = "its sums differ from run to run";
      continue;
    }
    CudnnDescriptor raw(cudnn_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    raw.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    raw.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    if (const cudnnStatus_t status = cudnn_.finalize(raw.get()); status != CUDNN_STATUS_SUCCESS) {
      why_none = cudnn_.explain(status);
      continue;
    }
    auto plan = std::make_unique<CudnnPlan>(cudnn_, std::move(raw));
    if (plan->workspace_bytes() <= most_workspace_bytes) {
      return plan;
    }
    why_none = fmt::format("it wants {} MiB of workspace", plan->workspace_bytes() >> 20);
  }
  return nullptr;
}

}  // namespace dstrain
