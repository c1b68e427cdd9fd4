// The parameters of a model as a list: what must be in a file that claims to hold its weights,
// whoever wrote it. The layers declare the same names and shapes (engine/model); a test holds the
// two lists together.
#pragma once

#include <string>
#include <vector>

#include "engine/config/model_spec.h"
#include "engine/plan/shard_map.h"

namespace dstrain {

struct ModelTensor {
  std::string name;  ///< "blocks.3.attention.query.weight"
  Shape shape;       ///< of a matrix [outputs, inputs]

  friend bool operator==(const ModelTensor&, const ModelTensor&) = default;
};

/// In the order of the model: embedding, blocks, final norm, head. Tied weights come once.
std::vector<ModelTensor> model_tensors(const ModelSpec& model);

/// The piece that consists of elements `flat` of the whole tensor.
Piece piece_of(const ModelTensor& tensor, Range flat);
/// The piece that consists of some columns of a matrix, in all its rows.
Piece columns_of(const ModelTensor& tensor, Range columns);

}  // namespace dstrain
