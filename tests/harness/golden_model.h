// A model of tests/golden: its config, and its tensors under dstrain's names and layouts.
// Hugging Face's GPT-2 keeps q‖k‖v in one matrix and stores matrices as [in, out].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/plan/blueprint.h"
#include "engine/spec/config_json.h"

namespace dstrain::test {

class GoldenModel {
 public:
  explicit GoldenModel(const std::string& name);

  /// AdamW, clipping and batch as tests/golden/README.md says.
  [[nodiscard]] LoadedConfig config(const std::string& precision) const;
  [[nodiscard]] std::vector<float> weight(const ParamDecl& param) const;
  /// Of step 0, before clipping.
  [[nodiscard]] std::vector<float> gradient(const ParamDecl& param) const;
  [[nodiscard]] std::vector<double> losses() const;      ///< 11
  [[nodiscard]] std::vector<double> grad_norms() const;  ///< 10
  /// Tokens of batch k, [B, T].
  [[nodiscard]] std::vector<std::int32_t> inputs(std::int64_t k) const;
  [[nodiscard]] std::vector<std::int32_t> targets(std::int64_t k) const;
  [[nodiscard]] std::int64_t batch() const { return batch_; }

 private:
  [[nodiscard]] std::vector<float> tensor(const SafetensorsFile& file,
                                          const std::string& prefix,
                                          const ParamDecl& param) const;
  [[nodiscard]] std::vector<std::int32_t> tokens(const char* name, std::int64_t k) const;

  std::string folder_;
  bool gpt2_;
  SafetensorsFile model_;
  SafetensorsFile golden_;
  std::int64_t batch_;
  std::int64_t sequence_;
};

}  // namespace dstrain::test
