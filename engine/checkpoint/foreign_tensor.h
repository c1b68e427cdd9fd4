// ForeignTensor: a tensor of another program's file, made of ours: several stacked by their rows
// (q‖k‖v), transposed or not. One description serves both ways: where each of ours lies in it, and
// what its bytes are.
//
//   ours  query [C, C]        theirs, not transposed: query's rows, key's rows, value's rows
//         key   [C, C]        transposed [C, 3C]:     each row has query's column, key's, value's
//         value [C, C]              head by head: a head's rows of query, of key, of value, the
//         next's
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/model_tensors.h"
#include "engine/checkpoint/placed_tensor.h"
#include "engine/checkpoint/tensor_source.h"

namespace dstrain {

struct ForeignTensor {
  std::string name;
  /// The shape in which they store it. Rows beyond those of the parts are padding, all zero, which
  /// only an untransposed tensor has.
  Shape shape;
  bool transposed = false;
  std::vector<ModelTensor> parts;
  /// The number of heads if the parts are stacked head by head: the first head's rows of each part,
  /// the next head's, …; the parts are alike then, and if they are transposed a head is a row.
  /// 0: part by part.
  std::int64_t heads = 0;
  /// The number of experts whose tensors lie behind each other, each as the above says; it is the
  /// first extent, and parts are the first expert's, the second's, …. 0: there is no such dim.
  std::int64_t experts = 0;
};

/// Where a part lies in a foreign tensor, in elements: (row, column) of ours is theirs at
/// origin + row · row_stride + column · column_stride.
struct PartPlace {
  std::int64_t origin = 0;
  std::int64_t row_stride = 1;
  std::int64_t column_stride = 1;
  std::int64_t run = 0;  ///< as in PlacedTensor
  std::int64_t run_stride = 0;
};
PartPlace place_in(const ForeignTensor& tensor, std::size_t index);
/// The same for a foreign tensor that begins at `first`.
PlacedTensor place_of_part(const ForeignTensor& tensor,
                           std::size_t index,
                           const std::byte* first,
                           DType dtype);

using ByteSink = std::function<void(std::span<const std::byte>)>;

/// Hands `sink` the whole tensor's bytes in `dtype` and in order, a few MiB at a time.
void stream_foreign(const TensorSource& source,
                    const ForeignTensor& tensor,
                    DType dtype,
                    const ByteSink& sink);

/// The most elements that are held while a tensor is copied through.
inline constexpr std::int64_t kChunkElements = std::int64_t{4} << 20;

}  // namespace dstrain
