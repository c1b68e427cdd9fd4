// llm.c's GPT-2 model files: a header of 256 int32, then all weights of one dtype back to back,
// matrices as [outputs, inputs], each kind of weight of all layers together. The embedding has
// padding rows behind the vocabulary, which are zero.
//
//   header  magic, version (3: f32, 5: bf16), positions, vocabulary, layers, heads, width, padded
//           vocabulary, zeros
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/mapped_file.h"
#include "engine/checkpoint/foreign_tensor.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/config/model_spec.h"

namespace dstrain {

/// True if a file begins like one. Throws ConfigError if it begins like another kind of llm.c's.
bool is_llmc_gpt2_file(const std::filesystem::path& file);

class LlmcGpt2File final : public TensorSource {
 public:
  /// Throws CheckpointError if the header is impossible, or the size is not the one that follows
  /// from it.
  explicit LlmcGpt2File(const std::filesystem::path& path);

  /// The model that the header describes; what it does not say is as in GPT-2.
  [[nodiscard]] const ModelSpec& model() const { return model_; }
  [[nodiscard]] std::span<const Entry> entries() const override { return entries_; }
  void read(const std::string& state, const Piece& piece, Tensor out) const override;

 private:
  struct Part {
    ModelTensor tensor;
    PlacedTensor place;
  };
  MappedFile file_;
  ModelSpec model_;
  std::vector<Part> parts_;  ///< in the order of entries_
  std::vector<Entry> entries_;
};

/// Describes such a file of a model, in the dtype f32 or bf16.
struct LlmcGpt2Layout {
  std::string header;
  std::vector<ForeignTensor> tensors;  ///< in the order of the file
  std::int64_t file_bytes = 0;
};
/// Throws ConfigError if llm.c has no file for this model or dtype.
LlmcGpt2Layout llmc_gpt2_layout(const ModelSpec& model, DType dtype);

}  // namespace dstrain
