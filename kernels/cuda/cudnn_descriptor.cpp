#include "kernels/cuda/cudnn_descriptor.h"

#include <utility>

#include <fmt/format.h>

namespace dstrain {

CudnnDescriptor::CudnnDescriptor(const Cudnn& cudnn, cudnnBackendDescriptorType_t type)
    : cudnn_(&cudnn) {
  if (const cudnnStatus_t status = cudnn.create_descriptor(type, &raw_);
      status != CUDNN_STATUS_SUCCESS) [[unlikely]] {
    cudnn.check(status, fmt::format("cudnnBackendCreateDescriptor ({})", static_cast<int>(type)));
  }
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : cudnn_(other.cudnn_), raw_(std::exchange(other.raw_, nullptr)) {}

CudnnDescriptor::~CudnnDescriptor() {
  if (raw_ != nullptr) {
    (void)cudnn_->destroy_descriptor(raw_);
  }
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.get());
}

void CudnnDescriptor::finalize(const char* what) {
  if (const cudnnStatus_t status = cudnn_->finalize(raw_); status != CUDNN_STATUS_SUCCESS)
      [[unlikely]] {
    cudnn_->check(status, fmt::format("cudnnBackendFinalize ({})", what));
  }
}

void CudnnDescriptor::set_raw(cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type,
                              std::int64_t count,
                              const void* values) {
  if (const cudnnStatus_t status = cudnn_->set_attribute(raw_, name, type, count, values);
      status != CUDNN_STATUS_SUCCESS) [[unlikely]] {
    cudnn_->check(status, fmt::format("cudnnBackendSetAttribute ({})", static_cast<int>(name)));
  }
}

CudnnDescriptor describe_device(const Cudnn& cudnn, std::int32_t index) {
  CudnnDescriptor description(cudnn, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  description.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, index);
  description.finalize("device");
  return description;
}

CudnnDescriptor describe_device(const Cudnn& cudnn, const std::string& json) {
  CudnnDescriptor description(cudnn, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  description.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                  std::span<const char>(json));
  description.finalize("device");
  return description;
}

std::vector<CudnnDescriptor> get_descriptors(const Cudnn& cudnn,
                                             const CudnnDescriptor& from,
                                             cudnnBackendAttributeName_t name,
                                             cudnnBackendDescriptorType_t type,
                                             std::int64_t most) {
  std::vector<CudnnDescriptor> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) {
    found.emplace_back(cudnn, type);
    raw.push_back(found.back().get());
  }
  std::int64_t count = 0;
  cudnn.check(cudnn.get_attribute(from.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count,
                                  static_cast<void*>(raw.data())),
              "cudnnBackendGetAttribute (descriptors)");
  while (static_cast<std::int64_t>(found.size()) > count) {
    found.pop_back();
  }
  return found;
}

}  // namespace dstrain
