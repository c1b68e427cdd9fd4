// AdapterConfig: low-rank adapters beside matrices of the blocks (LoRA, Hu et al. 2021):
// y = x · Wᵀ + s · (x · Aᵀ) · Bᵀ, with A [r, inputs] and B [outputs, r]; or, where rows have
// magnitudes m of their own, y = x · (m · (W + s B A) / ‖W + s B A‖)ᵀ, row by row (DoRA, Liu et al.
// 2024). They alone are trained, and the modules that are named for it. "peft", with the names of
// the library of that name.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace dstrain {

struct AdapterConfig {
  std::int64_t rank = 8;                      ///< r
  double alpha = 8.0;                         ///< "lora_alpha"
  bool rank_stabilised = false;               ///< "use_rslora": Kalajdzievski 2023
  bool magnitudes = false;                    ///< "use_dora"
  double dropout = 0.0;                       ///< "lora_dropout": of what A reads
  std::vector<std::string> target_modules{};  ///< in the model's names; empty: no adapters

  /// Trained whole beside them, in the model's names: "embed_tokens", "lm_head", "score".
  std::vector<std::string> modules_to_save{};

  [[nodiscard]] bool enabled() const { return !target_modules.empty(); }
  /// Whether feed-forwards that have them may go in tiles over tokens.
  [[nodiscard]] bool go_in_tiles() const { return !magnitudes && dropout == 0.0; }
  /// s
  [[nodiscard]] double scale() const {
    const auto r = static_cast<double>(rank);
    return alpha / (rank_stabilised ? std::sqrt(r) : r);
  }
  bool operator==(const AdapterConfig&) const = default;
};

}  // namespace dstrain
