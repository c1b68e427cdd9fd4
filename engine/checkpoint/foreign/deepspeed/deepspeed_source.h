// DeepSpeedSource: a DeepSpeed checkpoint's fp32 weights, and its moments where it has them, under
// our names. The model must have been one of Hugging Face's classes, by whose names DeepSpeed saved
// it (in front of them perhaps what wraps a model: "module."); a checkpoint of DeepSpeed does not
// say which, so the model comes from a config.json. Slices of tensor-parallel ranks are put
// together on the way, cut as their shapes say.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/foreign/deepspeed/deepspeed_checkpoint.h"
#include "engine/checkpoint/foreign_tensor.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/config/model_spec.h"

namespace dstrain {

class DeepSpeedSource final : public TensorSource {
 public:
  /// Throws CheckpointError, naming the folder and the tensor, if one of the model's is missing or
  /// its slices do not make up its shape, or if there is a trained one that the model lacks.
  DeepSpeedSource(const std::filesystem::path& folder, const ModelSpec& model);

  [[nodiscard]] std::span<const Entry> entries() const override { return entries_; }
  void read(const std::string& state, const Piece& piece, Tensor out) const override;

  /// Says how far the run had come. Its config and the state of its data are DeepSpeed's own, and
  /// are left out.
  [[nodiscard]] TrainingState training() const;

 private:
  /// A tensor of DeepSpeed's: whole, or a slice from each tensor-parallel rank.
  struct Stored {
    ForeignTensor tensor;
    std::vector<const DeepSpeedTensor*> slices;
    int cut_dim = 0;  ///< that the slices cut; of no meaning for one
  };
  struct Part {
    const Stored* stored;
    std::size_t index;  ///< of the foreign tensor's parts
  };

  void match(const ModelSpec& model);
  [[nodiscard]] std::string stored_name(const ForeignTensor& tensor, std::string_view prefix) const;
  [[nodiscard]] Stored find(const ForeignTensor& tensor, const std::string& name) const;
  void add(const Stored& stored);
  /// Reads elements [first, first + out.size()) of a tensor of theirs, put together from the
  /// slices.
  void read_run(const Stored& stored,
                StoredState state,
                std::int64_t first,
                std::span<float> out) const;

  DeepSpeedCheckpoint checkpoint_;
  std::vector<Stored> stored_;
  std::map<std::string, Part> parts_;  ///< by our names
  std::vector<Entry> entries_;
};

/// The config.json that says what model a DeepSpeed checkpoint is of: beside the step's folder, or
/// in it, as Hugging Face's trainer leaves it. Throws ConfigError that says how to name one.
std::filesystem::path model_beside(const std::filesystem::path& step_folder);

}  // namespace dstrain
