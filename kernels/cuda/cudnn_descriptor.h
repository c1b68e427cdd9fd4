// cuDNN's descriptors, from which its graphs are made: attributes are set, then they are finalized
// and can be used by others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn.h"

namespace dstrain {

/// Owner of one of cuDNN's descriptors.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const Cudnn& cudnn, cudnnBackendDescriptorType_t type);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;
  ~CudnnDescriptor();

  template <typename Value>
  void set(cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type,
           std::span<const Value> values) {
    set_raw(name, type, static_cast<std::int64_t>(values.size()), values.data());
  }
  template <typename Value>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, Value value) {
    set_raw(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  void finalize(const char* what);
  [[nodiscard]] cudnnBackendDescriptor_t get() const { return raw_; }

 private:
  void set_raw(cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type,
               std::int64_t count,
               const void* values);

  const Cudnn* cudnn_;
  cudnnBackendDescriptor_t raw_ = nullptr;
};

/// The device that plans are made for: one that exists, by CUDA's number, or one given by cuDNN's
/// description of it (JSON), which need not exist here.
CudnnDescriptor describe_device(const Cudnn& cudnn, std::int32_t index);
CudnnDescriptor describe_device(const Cudnn& cudnn, const std::string& json);

/// Returns descriptors that cuDNN fills, at most `most`: of engines or configurations.
std::vector<CudnnDescriptor> get_descriptors(const Cudnn& cudnn,
                                             const CudnnDescriptor& from,
                                             cudnnBackendAttributeName_t name,
                                             cudnnBackendDescriptorType_t type,
                                             std::int64_t most);

}  // namespace dstrain
