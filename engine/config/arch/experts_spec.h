// ExpertsSpec: a feed-forward that is a mixture of experts, of which each token goes through a few
// that a router chooses for it.
#pragma once

#include <cstdint>

namespace dstrain {

/// How a router's logits become the scores by which experts are chosen.
enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid };

/// How much a group of experts counts when groups are chosen first.
enum class GroupScore : std::uint8_t {
  kLargest,    ///< as its best expert: DeepSeek-V2
  kTwoLargest  ///< as the sum of its best two: DeepSeek-V3
};

/// A softmax of the chosen logits alone (Mixtral, gpt-oss) is one of all, `normalised`.
///
/// The auxiliary loss of a layer is, for each sequence by itself, E · Σ_e f_e · P_e: f_e the number
/// of the sequence's tokens that chose expert e, over the number of its tokens, so that all f add
/// up to k; P_e the mean of the softmax of its tokens' logits, of which alone it has a gradient
/// (transformers' load_balancing_loss_func of the logits of one sequence and one layer; Fedus et
/// al. 2022, §2.2; one sequence at a time as in DeepSeek-V3, arXiv 2412.19437, eq. 17 to 20). The
/// mean of it over the sequences of a step and over the layers with experts, times
/// balance_coefficient, joins the loss; so does the mean over tokens and layers of the squared
/// logsumexp of the logits, times z_coefficient. Where some targets do not count, both weigh by so
/// much more as the loss's own mean is over fewer.
struct ExpertsSpec {
  std::int64_t count = 0;      ///< E; 0: there are none
  std::int64_t per_token = 0;  ///< k
  RouterScore score = RouterScore::kSoftmax;
  bool normalised = false;         ///< the weights of the chosen k are divided by their sum
  float scale = 1.0F;              ///< and multiplied with this
  std::int64_t groups = 1;         ///< of neighbouring experts
  std::int64_t chosen_groups = 1;  ///< experts are chosen among those of so many groups
  GroupScore group_score = GroupScore::kLargest;
  bool router_bias = false;  ///< trained, of the logits: gpt-oss
  /// Added to scores for choosing only, and moved by the experts' load, not by gradients:
  /// DeepSeek-V3.
  bool balancing_bias = false;
  /// After each update b_e += rate · sign(mean load - load_e), loads being the numbers of tokens of
  /// the whole step that chose an expert (arXiv 2412.19437, §2.1.2; Wang et al. 2024, arXiv
  /// 2408.15664, algorithm 1). 0: the bias stays.
  float bias_update_rate = 0.0F;
  std::int64_t shared_width = 0;  ///< F of the feed-forward that every token goes through besides
  float balance_coefficient = 0.0F;  ///< of the auxiliary loss; 0: none
  float z_coefficient = 0.0F;        ///< of the z loss; 0: none

  bool operator==(const ExpertsSpec&) const = default;
};

}  // namespace dstrain
