// Keys of a config.json that some families of models have and others have not.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/arch/family.h"
#include "engine/config/key_builders.h"

namespace dstrain {

using FamilyTest = std::function<bool(const Family&)>;
/// Makes the key of a given name.
using MakeKey = std::function<Key(const std::string&)>;

inline bool is_gpt2(const Family& family) {
  return family.keys == KeyNames::kGpt2;
}
inline bool has_llama_keys(const Family& family) {
  return !is_gpt2(family);
}
inline bool is_rope_family(const Family& family) {
  return family.base.position == PositionKind::kRope;
}

/// Rotates as its keys say.
inline bool has_rope_keys(const Family& family) {
  return is_rope_family(family) && family.has_rope_keys;
}

/// "llama, mistral and qwen2": the families that pass, each with `ending` behind it.
std::string names_of(const FamilyTest& has, const std::string& ending = "");
/// The key, restricted to the families that pass.
Key for_families(Key key, FamilyTest has);
/// The key of the families that pass, once for each spelling that they have of LLaMA's `name`.
std::vector<Key> spelled(const std::string& name, const FamilyTest& has, const MakeKey& make);
/// Keys whose names families have in lists of their own.
std::vector<Key> listed_keys(
    const std::function<const std::vector<std::string>&(const Family&)>& names,
    const MakeKey& make);

inline constexpr double kLargestSize = 1e12;
/// The most blocks, which are planned one by one; the deepest transformer published (DeepNet, Wang
/// et al. 2022) has as many.
inline constexpr double kMostLayers = 1000;

inline constexpr KeyBlock kModel{"model.", &Config::model};

/// A size that must be written; `what` says what to write.
inline Key model_size(const std::string& name,
                      std::int64_t ModelSpec::*member,
                      const std::string& what,
                      double most = kLargestSize) {
  return required(kModel.field(name, between(1, most), member), "write " + what);
}

/// A size that null or absence leaves to finish_model().
inline Key derived_size(const char* name, std::int64_t ModelSpec::*member) {
  return null_is_default(kModel.field(name, between(1, kLargestSize), member));
}

/// The activation of the feed-forward: any of kernels/math/activation.h.
Key activation_key(const std::string& path);

// Parts of model_keys().
std::vector<Key> gpt2_keys();     ///< of the families with GPT-2's names
std::vector<Key> experts_keys();  ///< of mixtures of experts
std::vector<Key> latent_keys();   ///< of multi-head latent attention
std::vector<Key> length_keys();   ///< of the longest sequence
std::vector<Key> rope_keys();     ///< how frequencies are stretched, and which layers rotate
std::vector<Key> score_keys();    ///< how scores are scaled, and caps of scores and logits
std::vector<Key> window_keys();   ///< attention windows, and which layers have them

}  // namespace dstrain
