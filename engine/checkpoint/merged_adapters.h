// MergedAdapters: the weights of a checkpoint with low-rank adapters as those of the plain model
// that computes the same, W + s · B · A, its rows scaled to their magnitudes where they have some,
// and in place of tensors that were trained whole those that the adapters' source has. What is
// merged is computed as it is read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_source.h"
#include "engine/config/adapter_config.h"
#include "engine/config/model_spec.h"

namespace dstrain {

class MergedAdapters final : public TensorSource {
 public:
  /// `weights` and `adapters` may be the same source.
  MergedAdapters(std::shared_ptr<const TensorSource> weights,
                 std::shared_ptr<const TensorSource> adapters,
                 const ModelSpec& model,
                 const AdapterConfig& config);

  /// Parameters alone: the states of adapters are of no use to what they are merged into.
  [[nodiscard]] std::span<const Entry> entries() const override { return entries_; }
  void read(const std::string& state, const Piece& piece, Tensor out) const override;
  [[nodiscard]] std::string left_out() const override { return weights_->left_out(); }

 private:
  /// A and B of the matrix that was read last.
  struct Factors {
    std::string of;
    std::vector<float> a;            // [r, inputs]
    std::vector<float> b;            // [outputs, r]
    std::vector<float> row_factors;  // [outputs]: magnitude / length; empty without magnitudes
  };
  [[nodiscard]] const Entry* find(const std::string& tensor) const;
  /// Finds the adapter of a matrix; false where it has none.
  [[nodiscard]] bool load_factors(const std::string& weight) const;
  [[nodiscard]] std::vector<float> whole(const Entry& entry) const;
  /// Adds s · B · A to numbers of a piece of the matrix whose factors are loaded.
  void add_product(const Piece& piece, float* values) const;
  /// Divides the magnitudes by the lengths of the rows of W + s · B · A.
  void scale_rows(const std::string& weight, const Entry& magnitude) const;

  std::shared_ptr<const TensorSource> weights_;
  std::shared_ptr<const TensorSource> adapters_;
  float scale_;
  std::int64_t rank_;
  std::vector<std::vector<std::string>> shared_;  // parts of a block that have one A, its first
  std::vector<Entry> entries_;
  mutable Factors factors_;
};

}  // namespace dstrain
