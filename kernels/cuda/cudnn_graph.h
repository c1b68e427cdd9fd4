// A graph of cuDNN's operations, and the plan that runs it.
//
// Tensors have four dims and a stride for each, in elements. They lie in memory, are numbers on
// the host (scalars), or are intermediate: between two operations of a fused kernel, never stored.
// cuDNN knows a plan only for graphs of certain forms; operations are added in the order in which
// they compute.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/cuda/cudnn_descriptor.h"

namespace dstrain {

/// Operations compiled for one device.
class CudnnPlan {
 public:
  CudnnPlan(const Cudnn& cudnn, CudnnDescriptor plan);
  [[nodiscard]] std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// The tensors of memory and the scalars, by the ids that they were given. A scalar's pointer is
  /// to the host's memory and is read before this returns.
  struct Binding {
    std::int64_t id;
    const void* data;
  };
  void run(cudnnHandle_t handle, std::span<const Binding> bindings, void* workspace) const;

 private:
  const Cudnn* cudnn_;
  CudnnDescriptor plan_;
  std::int64_t workspace_bytes_ = 0;
};

class CudnnGraph {
 public:
  using Dims = std::array<std::int64_t, 4>;
  using Tensor = std::size_t;  ///< an index into those of this graph

  explicit CudnnGraph(const Cudnn& cudnn) : cudnn_(cudnn) {}

  Tensor memory(std::int64_t id, DType dtype, const Dims& dims, const Dims& strides);
  /// Adds an f32 scalar.
  Tensor scalar(std::int64_t id);
  /// Adds an intermediate tensor: dense, the last dim fastest.
  Tensor intermediate(cudnnDataType_t type, const Dims& dims);
  Tensor intermediate(cudnnDataType_t type, const Dims& dims, const Dims& strides);

  /// c = a · b over the last two dims, accumulated in f32. Fewer heads (the second dim) in b are
  /// shared by a's.
  void matmul(Tensor a, Tensor b, Tensor c);
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y);
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y);
  /// y = whether a ≥ b, of i32.
  void at_least(Tensor a, Tensor b, Tensor y);
  /// y = place along `axis` of each element of x, i32.
  void index(Tensor x, std::int64_t axis, Tensor y);
  /// y = where ? x : otherwise.
  void select(Tensor x, Tensor otherwise, Tensor where, Tensor y);
  /// Reduces over the dims that are shorter in y than in x.
  void reduce(cudnnReduceTensorOp_t kind, Tensor x, Tensor y);
  /// Makes y the same elements as x, seen with y's dims and strides.
  void reshape(Tensor x, Tensor y);

  /// Returns the first plan that cuDNN's heuristics propose which adds in the same order in every
  /// run and whose workspace is not larger than allowed; nullptr if there is none, and `why_none`
  /// says why.
  std::unique_ptr<CudnnPlan> plan(const CudnnDescriptor& device,
                                  std::int64_t most_workspace_bytes,
                                  std::string& why_none);

 private:
  struct Place {
    std::int64_t id;
    bool intermediate;
    bool scalar;
  };
  struct PointwiseOperands {
    Tensor x;
    std::optional<Tensor> b;
    std::optional<Tensor> where;
    Tensor y;
  };
  void add_pointwise(CudnnDescriptor pointwise, const PointwiseOperands& operands);
  Tensor add_tensor(cudnnDataType_t type,
                    const Dims& dims,
                    const Dims& strides,
                    const Place& place);
  [[nodiscard]] const CudnnDescriptor& at(Tensor tensor) const { return tensors_[tensor]; }
  CudnnDescriptor describe_pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math);
  CudnnDescriptor describe_operations();

  const Cudnn& cudnn_;
  std::vector<CudnnDescriptor> tensors_;
  std::vector<CudnnDescriptor> operations_;
  std::vector<CudnnDescriptor> kept_;  // what operations refer to
};

}  // namespace dstrain
