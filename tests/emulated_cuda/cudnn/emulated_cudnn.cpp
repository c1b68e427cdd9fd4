// cuDNN of the emulated GPU: descriptors that keep what is set of them, and graphs that are
// interpreted operation by operation (emulated_cudnn_graph.h). Whether cuDNN takes such descriptors
// is cudnn_plans_test.cpp's question, to cuDNN itself.
#include <array>
#include <cstring>

#include "kernels/cuda/cudnn.h"
#include "tests/emulated_cuda/cudnn/emulated_cudnn_graph.h"

namespace dstrain {
namespace {

using emulated::CudnnContent;

/// What a cudnnBackendDescriptor_t points to.
struct Descriptor {
  std::shared_ptr<CudnnContent> content;
};

Descriptor& descriptor_of(cudnnBackendDescriptor_t raw) {
  return *static_cast<Descriptor*>(raw);
}

std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    default:
      return 4;  // enumerators, CUDNN_TYPE_INT32, CUDNN_TYPE_FLOAT
  }
}

cudnnStatus_t set_attribute(cudnnBackendDescriptor_t raw,
                            cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type,
                            std::int64_t count,
                            const void* values) {
  CudnnContent& content = *descriptor_of(raw).content;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    std::vector<std::shared_ptr<CudnnContent>>& references = content.references[name];
    references.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      references.push_back(
          descriptor_of(static_cast<const cudnnBackendDescriptor_t*>(values)[i]).content);
    }
    return CUDNN_STATUS_SUCCESS;
  }
  std::vector<std::byte>& bytes = content.values[name];
  bytes.resize(static_cast<std::size_t>(count) * bytes_of(type));
  std::memcpy(bytes.data(), values, bytes.size());
  return CUDNN_STATUS_SUCCESS;
}

/// Refuses tensors of kRefusedDim columns.
cudnnStatus_t finalize(cudnnBackendDescriptor_t raw) {
  const CudnnContent& content = *descriptor_of(raw).content;
  if (const auto dims = content.values.find(CUDNN_ATTR_TENSOR_DIMENSIONS);
      dims != content.values.end()) {
    std::array<std::int64_t, 4> values{};
    std::memcpy(values.data(), dims->second.data(), sizeof(values));
    if (values[3] == emulated::kRefusedDim) return CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
  }
  return CUDNN_STATUS_SUCCESS;
}

template <typename Value>
cudnnStatus_t give(Value value, std::int64_t* count, void* values) {
  *count = 1;
  std::memcpy(values, &value, sizeof(value));
  return CUDNN_STATUS_SUCCESS;
}

/// A descriptor made by the caller, to be filled.
void fill(void* values, std::int64_t i, std::shared_ptr<CudnnContent> content) {
  descriptor_of(static_cast<cudnnBackendDescriptor_t*>(values)[i]).content = std::move(content);
}

/// Two configurations: the first, to be passed over, has an engine that adds in any order.
cudnnStatus_t propose(const CudnnContent& heuristics, std::int64_t* count, void* values) {
  for (const bool in_order : {false, true}) {
    auto engine = std::make_shared<CudnnContent>(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    engine->adds_in_any_order = !in_order;
    auto configuration = std::make_shared<CudnnContent>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    configuration->references[CUDNN_ATTR_ENGINECFG_ENGINE] = {engine};
    configuration->references[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] =
        heuristics.references.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    fill(values, in_order ? 1 : 0, std::move(configuration));
  }
  *count = 2;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_attribute(cudnnBackendDescriptor_t raw,
                            cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t /*type*/,
                            std::int64_t /*requested*/,
                            std::int64_t* count,
                            void* values) {
  const CudnnContent& content = *descriptor_of(raw).content;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      return propose(content, count, values);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      *count = 1;
      fill(values, 0, content.references.at(CUDNN_ATTR_ENGINECFG_ENGINE).front());
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      if (content.adds_in_any_order) {
        return give(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, count, values);
      }
      *count = 0;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return give(emulated::kCudnnWorkspace, count, values);
    default:
      return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

cudnnStatus_t execute(cudnnHandle_t handle,
                      cudnnBackendDescriptor_t plan,
                      cudnnBackendDescriptor_t pack) {
  const CudnnContent& configuration =
      *descriptor_of(plan).content->references.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).front();
  return emulated::interpret(configuration.references.at(CUDNN_ATTR_ENGINE_OPERATION_GRAPH).front(),
                             *descriptor_of(pack).content,
                             *reinterpret_cast<cudaStream_t*>(handle));
}

}  // namespace

Cudnn open_cudnn() {
  Cudnn cudnn{};
  cudnn.version = [] { return std::size_t{91900}; };
  cudnn.error_string = [](cudnnStatus_t) { return "refused by the emulation"; };
  cudnn.last_error = [](char* text, std::size_t) { *text = '\0'; };
  cudnn.create = [](cudnnHandle_t* handle) {
    *handle = reinterpret_cast<cudnnHandle_t>(new cudaStream_t{});
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.destroy = [](cudnnHandle_t handle) {
    delete reinterpret_cast<cudaStream_t*>(handle);
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.set_stream = [](cudnnHandle_t handle, cudaStream_t stream) {
    *reinterpret_cast<cudaStream_t*>(handle) = stream;
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.create_descriptor = [](cudnnBackendDescriptorType_t type,
                               cudnnBackendDescriptor_t* descriptor) {
    *descriptor = new Descriptor{std::make_shared<CudnnContent>(type)};
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.destroy_descriptor = [](cudnnBackendDescriptor_t descriptor) {
    delete &descriptor_of(descriptor);
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn.set_attribute = set_attribute;
  cudnn.get_attribute = get_attribute;
  cudnn.finalize = finalize;
  cudnn.execute = execute;
  return cudnn;
}

}  // namespace dstrain
