// TensorSource: named whole tensors of a model, wherever they come from: a dstrain checkpoint, a
// Hugging Face folder, a DeepSpeed checkpoint, an llm.c file. They have dstrain's names and shapes,
// so that whoever reads (a run that starts from weights, a conversion, generation) need not know
// which. Reading is random access by piece: no source holds the whole model in memory.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/plan/shard_map.h"
#include "kernels/core/tensor.h"

namespace dstrain {

class TensorSource {
 public:
  struct Entry {
    std::string tensor;         ///< "blocks.3.attention.query.weight"
    std::string state;          ///< "parameter" (the master), "exp_avg", "exp_avg_sq", …
    Shape shape;                ///< of the whole tensor
    DType dtype = DType::kF32;  ///< that it is stored in
  };

  TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;
  virtual ~TensorSource() = default;

  /// Sorted by tensor, then state.
  [[nodiscard]] virtual std::span<const Entry> entries() const = 0;
  /// Fills `out`, host memory of piece.flat.size() elements, f32, bf16 or f16, from the part of a
  /// state of piece.tensor that `piece` describes; converts to the nearest. Throws CheckpointError,
  /// naming file and tensor, if it is missing, damaged or of another shape than piece.shape.
  virtual void read(const std::string& state, const Piece& piece, Tensor out) const = 0;
  /// Names what the files hold besides and a reader does not get, since the model has no place for
  /// it; empty where there is nothing of the kind.
  [[nodiscard]] virtual std::string left_out() const { return {}; }
};

}  // namespace dstrain
