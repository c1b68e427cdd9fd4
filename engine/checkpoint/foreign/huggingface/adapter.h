// Low-rank adapters as PEFT's files: adapter_model.safetensors and adapter_config.json.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/foreign/huggingface/writer.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/adapter_config.h"

namespace dstrain {

inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";

/// The adapters that a source has of the model's linear layers, under PEFT's names. A layer in
/// which several matrices of ours are stacked has one A and one B, whose rows lie as the layer's
/// do.
HuggingFaceShard adapter_shard(const ModelSpec& model,
                               const AdapterConfig& adapters,
                               const TensorSource& source,
                               std::optional<DType> dtype);

/// The text of the config. `base`: where the model without adapters lies, or ""; `shard`: that
/// above.
std::string adapter_config(const AdapterConfig& adapters,
                           const ModelSpec& model,
                           const HuggingFaceShard& shard,
                           const std::string& base);

/// The adapters in a folder of PEFT's for a model, under our names.
class PeftAdapter final : public TensorSource {
 public:
  /// Throws CheckpointError where files are missing or damaged, or hold what the model has no place
  /// for or an adapter here cannot be.
  PeftAdapter(const std::filesystem::path& folder, const ModelSpec& model);

  [[nodiscard]] const AdapterConfig& config() const { return config_; }
  [[nodiscard]] std::span<const Entry> entries() const override { return entries_; }
  void read(const std::string& state, const Piece& piece, Tensor out) const override;

 private:
  /// A tensor of ours in one of theirs.
  struct Place {
    std::size_t tensor = 0;  // of tensors_
    std::size_t part = 0;
  };

  AdapterConfig config_;
  SafetensorsFile file_;
  std::vector<ForeignTensor> tensors_;
  std::map<std::string, Place> places_;
  std::vector<Entry> entries_;
};

}  // namespace dstrain
