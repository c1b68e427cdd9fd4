// The tensors of low-rank adapters: which matrices have one, and what they are called.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/arch/tensor_list.h"

namespace dstrain {

/// How the names of an adapter's two matrices end, and of the magnitudes that the rows of the
/// matrix beside which they are may have, behind that of the matrix:
/// "blocks.3.attention.query.lora_a".
inline constexpr std::string_view kAdapterA = ".lora_a";
inline constexpr std::string_view kAdapterB = ".lora_b";
inline constexpr std::string_view kAdapterMagnitude = ".lora_magnitude";
inline bool is_adapter(std::string_view name) {
  return name.ends_with(kAdapterA) || name.ends_with(kAdapterB) ||
         name.ends_with(kAdapterMagnitude);
}

/// A linear layer of Hugging Face's that every block may have, and the matrices of ours that are
/// stacked in it: they have one A in common, that of the first.
struct AdaptedModule {
  std::string theirs;              ///< "model.layers.{}.self_attn.q_proj"
  std::vector<std::string> parts;  ///< within a block, without ".weight": "attention.query"
  bool in_order = true;            ///< one after the other, not head by head
  bool operator==(const AdaptedModule&) const = default;
};

/// The head of a model that scores.
inline constexpr const char* kScoreModule = "score";
/// Every target that stands for all linear layers of blocks.
inline constexpr const char* kAllLinear = "all-linear";

/// The linear layers of a model's blocks, but routers and experts.
std::vector<AdaptedModule> linear_modules(const ModelSpec& model);
/// Those among `modules` that any of the targets names: by all of its name or by the end of it, as
/// "q_proj".
std::vector<AdaptedModule> modules_named(const std::vector<AdaptedModule>& modules,
                                         const std::vector<std::string>& targets);

/// The matrices that are coded together with one of a block's ("blocks.3.attention.key.weight"):
/// those of its module, in order; nothing where it is of none of `modules`.
std::vector<std::string> coded_with(const std::vector<AdaptedModule>& modules,
                                    const std::string& weight);

/// Patterns of the names of the tensors in the modules whose names end as any of `names`, in every
/// block. As PEFT has it, an end need not be a whole word: "norm" names "input_layernorm" too.
std::vector<std::string> tensors_of_modules(const ModelSpec& model,
                                            const std::vector<std::string>& names);

/// The adapters of a block whose tensors are `block`, all names with `prefix` in front
/// ("blocks.3."). Of B, and of magnitudes, each part has its own rows.
std::vector<TensorDecl> adapter_tensors(const std::vector<AdaptedModule>& modules,
                                        std::int64_t rank,
                                        bool magnitudes,
                                        const std::vector<TensorDecl>& block,
                                        const std::string& prefix);

}  // namespace dstrain
