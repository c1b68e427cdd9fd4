#include "engine/checkpoint/model_tensors.h"

#include <utility>

#include "engine/config/arch/tensor_list.h"
#include "kernels/core/check.h"

namespace dstrain {
std::vector<ModelTensor> model_tensors(const ModelSpec& model) {
  std::vector<ModelTensor> tensors;
  for (TensorDecl& tensor : architecture_tensors(model)) {
    tensors.push_back({std::move(tensor.name), tensor.shape});
  }
  return tensors;
}

Piece piece_of(const ModelTensor& tensor, Range flat) {
  Shape start;
  for (int dim = 0; dim < tensor.shape.rank(); ++dim) {
    start.push_back(0);
  }
  return {.tensor = tensor.name,
          .shape = tensor.shape,
          .box_start = start,
          .box_extent = tensor.shape,
          .flat = flat};
}

Piece columns_of(const ModelTensor& tensor, Range columns) {
  check(tensor.shape.rank() == 2, "{} of shape {} has no columns", tensor.name,
        tensor.shape.to_string());
  return {.tensor = tensor.name,
          .shape = tensor.shape,
          .box_start = {0, columns.begin},
          .box_extent = {tensor.shape[0], columns.size()},
          .flat = {0, tensor.shape[0] * columns.size()}};
}

}  // namespace dstrain
