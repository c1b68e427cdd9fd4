// HuggingFaceFolder: the weights of a model folder as transformers writes it, under our names.
// One model.safetensors, or shards with model.safetensors.index.json. Opening it maps the files and
// holds every name and shape against the model; no weight is read before it is asked for.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/foreign/huggingface/mxfp4.h"
#include "engine/checkpoint/foreign/huggingface/names.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/tensor_source.h"

namespace dstrain {

class HuggingFaceFolder final : public TensorSource {
 public:
  /// Throws CheckpointError, naming file and tensor, if a tensor of the model is missing, is
  /// there twice, or has another shape, if there is one that the model does not have, or if a tied
  /// head differs from the embedding.
  HuggingFaceFolder(const std::filesystem::path& folder, const ModelSpec& model);

  [[nodiscard]] std::span<const Entry> entries() const override { return entries_; }
  void read(const std::string& state, const Piece& piece, Tensor out) const override;
  [[nodiscard]] std::string left_out() const override { return left_out_; }

 private:
  struct Found {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };
  struct Part {
    ModelTensor tensor;
    PlacedTensor place;
    Found found;
    std::optional<Mxfp4Matrix> packed{};  ///< in place of `place`; its blocks are `found`
    Found scales{};
  };

  void open(const std::filesystem::path& folder);
  void open_shards(const std::filesystem::path& index);
  /// The files hold the model's tensors and nothing else.
  void match(const std::filesystem::path& folder, const ModelSpec& model);
  void add(const ForeignTensor& tensor, const Found& found);
  /// The same of a tensor that comes in MXFP4.
  void add_packed(const ForeignTensor& tensor, const Found& blocks, const Found& scales);
  void compare_tied_head(const std::string& name, const Found& table) const;

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Found> found_;  ///< every tensor of the files, by their names
  std::map<std::string, Part> parts_;   ///< by ours
  std::vector<Entry> entries_;
  std::string left_out_;
};

}  // namespace dstrain
