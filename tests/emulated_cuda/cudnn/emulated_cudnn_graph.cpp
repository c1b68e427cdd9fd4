#include "tests/emulated_cuda/cudnn/emulated_cudnn_graph.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "tests/emulated_cuda/emulated_memory.h"
#include "tests/emulated_cuda/emulated_stream.h"

namespace dstrain::emulated {
namespace {

using Dims = std::array<std::int64_t, 4>;

template <typename Value>
std::vector<Value> all(const CudnnContent& content, cudnnBackendAttributeName_t name) {
  const std::vector<std::byte>& bytes = content.values.at(name);
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

template <typename Value>
Value one(const CudnnContent& content, cudnnBackendAttributeName_t name) {
  return all<Value>(content, name).at(0);
}

Dims dims_of(const CudnnContent& tensor, cudnnBackendAttributeName_t name) {
  const auto values = all<std::int64_t>(tensor, name);
  if (values.size() != 4) throw std::runtime_error("a tensor without four dims");
  return {values[0], values[1], values[2], values[3]};
}

std::int64_t dot(const Dims& a, const Dims& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
}

template <typename F>
void for_each(const Dims& dims, F&& f) {
  for (std::int64_t a = 0; a < dims[0]; ++a) {
    for (std::int64_t b = 0; b < dims[1]; ++b) {
      for (std::int64_t c = 0; c < dims[2]; ++c) {
        for (std::int64_t d = 0; d < dims[3]; ++d) {
          f(Dims{a, b, c, d});
        }
      }
    }
  }
}

float rounded(cudnnDataType_t type, float value) {
  if (type == CUDNN_DATA_BFLOAT16) return to_float(to_bf16(value));
  if (type == CUDNN_DATA_HALF) return to_float(to_f16(value));
  return value;
}

/// A tensor while a graph runs.
class Value {
 public:
  Value(const CudnnContent& tensor, const void* data)
      : dims_(dims_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides_(dims_of(tensor, CUDNN_ATTR_TENSOR_STRIDES)),
        type_(one<cudnnDataType_t>(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE)),
        data_(const_cast<void*>(data)) {
    const auto alignment = one<std::int64_t>(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    const bool is_scalar = one<std::uint8_t>(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0;
    if (one<std::uint8_t>(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0) {
      const Dims last{dims_[0] - 1, dims_[1] - 1, dims_[2] - 1, dims_[3] - 1};
      stored_.assign(static_cast<std::size_t>(dot(last, strides_)) + 1,
                     std::numeric_limits<float>::quiet_NaN());
    } else if (data == nullptr || (!is_scalar && reinterpret_cast<std::uintptr_t>(data) %
                                                         static_cast<std::uintptr_t>(alignment) !=
                                                     0)) {
      throw std::runtime_error("a tensor without memory, or not aligned as it says");
    }
  }
  [[nodiscard]] const Dims& dims() const { return dims_; }
  /// Dims of 1 stand for any index.
  [[nodiscard]] float at(Dims index) const {
    for (std::size_t i = 0; i < 4; ++i) {
      index[i] = dims_[i] == 1 ? 0 : index[i];
    }
    return at_offset(dot(index, strides_));
  }
  [[nodiscard]] float at_offset(std::int64_t offset) const {
    if (!stored_.empty()) return stored_.at(static_cast<std::size_t>(offset));
    if (type_ == CUDNN_DATA_BFLOAT16) return to_float(static_cast<const BF16*>(data_)[offset]);
    if (type_ == CUDNN_DATA_HALF) return to_float(static_cast<const F16*>(data_)[offset]);
    return static_cast<const float*>(data_)[offset];
  }
  [[nodiscard]] std::int64_t offset(const Dims& index) const { return dot(index, strides_); }
  void set(const Dims& index, float value) {
    const std::int64_t to = offset(index);
    if (!stored_.empty()) {
      stored_.at(static_cast<std::size_t>(to)) = rounded(type_, value);
    } else if (type_ == CUDNN_DATA_BFLOAT16) {
      static_cast<BF16*>(data_)[to] = to_bf16(value);
    } else if (type_ == CUDNN_DATA_HALF) {
      static_cast<F16*>(data_)[to] = to_f16(value);
    } else {
      static_cast<float*>(data_)[to] = value;
    }
  }

 private:
  Dims dims_;
  Dims strides_;
  cudnnDataType_t type_;
  void* data_;
  std::vector<float> stored_;  // of an intermediate tensor
};

class Run {
 public:
  Run(const CudnnContent& graph, const CudnnContent& pack, int device) {
    const auto ids = all<std::int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto data = all<const void*>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (ids.size() != data.size()) throw std::runtime_error("ids without pointers");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      data_[ids[i]] = data[i];
    }
    for (const auto& operation : graph.references.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
      for (const auto& [name, references] : operation->references) {
        if (references.front()->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
          prepare(*references.front(), device);
        }
      }
    }
  }

  void compute(const CudnnContent& operation) {
    switch (operation.type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return multiply(tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                        tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                        tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return reduce(one<cudnnReduceTensorOp_t>(
                          *operation.references.at(CUDNN_ATTR_OPERATION_REDUCTION_DESC).at(0),
                          CUDNN_ATTR_REDUCTION_OPERATOR),
                      tensor(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
                      tensor(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return see_as(tensor(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
                      tensor(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return pointwise(operation);
      default:
        throw std::runtime_error("an operation that the emulation does not know");
    }
  }

 private:
  /// Takes a scalar's value, and looks whose memory the others lie in.
  void prepare(const CudnnContent& tensor, int device) {
    const auto id = one<std::int64_t>(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    if (one<std::uint8_t>(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0) {
      if (scalars_.try_emplace(id, *static_cast<const float*>(data_.at(id))).second) {
        data_[id] = &scalars_.at(id);
      }
    } else if (one<std::uint8_t>(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL) == 0) {
      check_on_device("cudnnBackendExecute", data_.at(id), device);
    }
  }

  Value& tensor(const CudnnContent& operation, cudnnBackendAttributeName_t name) {
    const CudnnContent& tensor = *operation.references.at(name).at(0);
    const auto id = one<std::int64_t>(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    const bool is_virtual = one<std::uint8_t>(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0;
    // One id may be described more than once only with the same dims, as cuDNN wants.
    return values_.try_emplace(id, tensor, is_virtual ? nullptr : data_.at(id)).first->second;
  }

  static void multiply(const Value& a, const Value& b, Value& c) {
    const std::int64_t group = a.dims()[1] / b.dims()[1];
    for_each(c.dims(), [&](const Dims& i) {
      float sum = 0.0F;
      for (std::int64_t k = 0; k < a.dims()[3]; ++k) {
        sum += a.at({i[0], i[1], i[2], k}) * b.at({i[0], i[1] / group, k, i[3]});
      }
      c.set(i, sum);
    });
  }

  static void reduce(cudnnReduceTensorOp_t kind, const Value& x, Value& y) {
    const Dims shorter{x.dims()[0] / y.dims()[0], x.dims()[1] / y.dims()[1],
                       x.dims()[2] / y.dims()[2], x.dims()[3] / y.dims()[3]};
    const bool largest = kind == CUDNN_REDUCE_TENSOR_MAX;
    for_each(y.dims(), [&](const Dims& i) {
      float result = largest ? -std::numeric_limits<float>::infinity() : 0.0F;
      for_each(shorter, [&](const Dims& j) {
        const float value = x.at({i[0] * shorter[0] + j[0], i[1] * shorter[1] + j[1],
                                  i[2] * shorter[2] + j[2], i[3] * shorter[3] + j[3]});
        result = largest ? std::fmax(result, value) : result + value;
      });
      y.set(i, result);
    });
  }

  static void see_as(const Value& x, Value& y) {
    for_each(y.dims(), [&](const Dims& i) { y.set(i, x.at_offset(y.offset(i))); });
  }

  void pointwise(const CudnnContent& operation) {
    const CudnnContent& how =
        *operation.references.at(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR).at(0);
    const auto mode = one<cudnnPointwiseMode_t>(how, CUDNN_ATTR_POINTWISE_MODE);
    const Value& x = tensor(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    Value& y = tensor(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const auto optional = [&](cudnnBackendAttributeName_t name) {
      return operation.references.contains(name) ? &tensor(operation, name) : nullptr;
    };
    const Value* const second = optional(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const Value* const where = optional(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    for_each(y.dims(), [&](const Dims& i) {
      const auto b = [&] { return second->at(i); };
      const auto result = [&]() -> float {
        switch (mode) {
          case CUDNN_POINTWISE_ADD:
            return x.at(i) + b();
          case CUDNN_POINTWISE_SUB:
            return x.at(i) - b();
          case CUDNN_POINTWISE_MUL:
            return x.at(i) * b();
          case CUDNN_POINTWISE_DIV:
            return x.at(i) / b();
          case CUDNN_POINTWISE_EXP:
            return std::exp(x.at(i));
          case CUDNN_POINTWISE_LOG:
            return std::log(x.at(i));
          case CUDNN_POINTWISE_CMP_GE:
            return x.at(i) >= b() ? 1.0F : 0.0F;
          case CUDNN_POINTWISE_GEN_INDEX:
            return static_cast<float>(
                i.at(static_cast<std::size_t>(one<std::int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS))));
          case CUDNN_POINTWISE_BINARY_SELECT:
            return where->at(i) != 0.0F ? x.at(i) : b();
          default:
            throw std::runtime_error("a pointwise mode that the emulation does not know");
        }
      };
      y.set(i, result());
    });
  }

  std::map<std::int64_t, const void*> data_;
  std::map<std::int64_t, float> scalars_;
  std::map<std::int64_t, Value> values_;
};

}  // namespace

cudnnStatus_t interpret(const std::shared_ptr<CudnnContent>& graph,
                        const CudnnContent& pack,
                        cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  auto* const workspace = one<std::byte*>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  check_on_device("cudnnBackendExecute (workspace)", workspace, stream.device());
  stream.enqueue([graph, workspace, run = std::make_shared<Run>(*graph, pack, stream.device())] {
    std::memset(workspace, 0xff, kCudnnWorkspace);
    for (const auto& operation : graph->references.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
      run->compute(*operation);
    }
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace dstrain::emulated
