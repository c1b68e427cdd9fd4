// A model of tests/golden: its config, and its tensors under dstrain's names and layouts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/checkpoint/foreign/huggingface/names.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/config_json.h"
#include "engine/plan/blueprint.h"
#include "engine/train/engine.h"

namespace dstrain::test {

class GoldenModel {
 public:
  explicit GoldenModel(const std::string& name);

  /// Config and weights, as Hugging Face's save_pretrained wrote them.
  [[nodiscard]] const std::string& folder() const { return folder_; }
  /// A config with AdamW, clipping and batch as in tests/golden/README.md; `changes` are merged
  /// into it.
  [[nodiscard]] LoadedConfig config(const std::string& precision,
                                    int ranks = 1,
                                    const nlohmann::json& changes = nlohmann::json::object()) const;
  [[nodiscard]] std::vector<float> weight(const ParamDecl& param) const;
  [[nodiscard]] std::vector<float> weight(const UntrainedDecl& tensor) const;
  /// Gives the engine, of one rank, the model's weights.
  void load_into(Engine& engine) const;
  /// The gradient of step 0, before clipping.
  [[nodiscard]] std::vector<float> gradient(const ParamDecl& param) const;
  /// The same for the run in 8 bits, which only fp8-tiny has; fp8_losses likewise.
  [[nodiscard]] std::vector<float> fp8_gradient(const ParamDecl& param) const;
  [[nodiscard]] std::vector<double> fp8_losses() const;  ///< 11
  [[nodiscard]] std::vector<double> losses() const;      ///< 11
  [[nodiscard]] std::vector<double> grad_norms() const;  ///< 10
  /// Tokens of batch k, [B, T].
  [[nodiscard]] std::vector<std::int32_t> inputs(std::int64_t k) const;
  [[nodiscard]] std::vector<std::int32_t> targets(std::int64_t k) const;
  [[nodiscard]] std::int64_t batch() const { return batch_; }

 private:
  [[nodiscard]] std::vector<float> tensor(const SafetensorsFile& file,
                                          const std::string& prefix,
                                          const std::string& name,
                                          Shape shape) const;
  [[nodiscard]] std::vector<std::int32_t> tokens(const char* name, std::int64_t k) const;

  std::string folder_;
  std::vector<ForeignTensor> tensors_;
  SafetensorsFile model_;
  SafetensorsFile golden_;
  std::int64_t batch_;
  std::int64_t sequence_;
};

}  // namespace dstrain::test
