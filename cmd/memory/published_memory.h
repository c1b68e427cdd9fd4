// The closed forms that papers publish for the memory of GPTs: parameters (Narayanan et al. 2021),
// activations (Korthikanti et al. 2022), model states (Rajbhandari et al. 2020, Megatron). They are
// yardsticks to hold a MemoryPlan against, not what a run of dstrain holds: they describe a 16-bit
// GPT with dropout, stored attention scores and an MLP of 4 × width. Bytes are doubles, because the
// papers' divisions leave fractions; none is rounded here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/model_spec.h"

namespace dstrain {

/// The papers' letters.
struct PublishedGpt {
  std::int64_t vocab_size = 0;       ///< V
  std::int64_t sequence_length = 0;  ///< s
  std::int64_t hidden_size = 0;      ///< h
  std::int64_t num_layers = 0;       ///< l
  std::int64_t num_heads = 0;        ///< a
};

/// A GPT as wide, deep and many-headed as `model`.
PublishedGpt published_gpt(const ModelSpec& model, std::int64_t sequence_length);

/// How the model is trained; all ≥ 1.
struct PublishedRun {
  std::int64_t micro_batch_size = 1;          ///< b, sequences
  std::int64_t tensor = 1;                    ///< t
  std::int64_t pipeline = 1;                  ///< p
  std::int64_t interleave = 1;                ///< m, chunks of layers a rank
  std::int64_t data = 1;                      ///< ranks that ZeRO cuts over
  std::optional<std::int64_t> micro_batches;  ///< of a step; none: p or more
};

/// 12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h)), which is whole: Narayanan et al. 2021, §5.1. All but
/// the last LayerNorm's 2h.
std::int64_t gpt_parameters(const PublishedGpt& gpt);

/// Rows of Korthikanti et al. 2022, Table 2. "Selective" recomputes attention's scores, softmax and
/// dropout; FlashAttention, which never stores them, is counted the same way.
enum class ActivationScheme : std::uint8_t {
  kNone,  ///< one rank holds the layer, whatever `tensor` says
  kTensor,
  kTensorSequence,
  kTensorSelective,
  kTensorSequenceSelective,
  kFull  ///< only each layer's input is kept, on every tensor rank
};

/// The bytes of one layer and micro-batch on one rank.
double activation_bytes_per_layer(const PublishedGpt& gpt,
                                  const PublishedRun& run,
                                  ActivationScheme scheme);

/// The micro-batches × layers that the first stage of a pipeline holds at its fullest, divided by
/// l. Korthikanti et al. 2022, §4.2.3: 1, for p micro-batches of l/p layers; interleaved 1 + (p −
/// 1)/(p·m). Fewer micro-batches than p fill less of a pipeline that is not interleaved.
double first_stage_share(const PublishedRun& run);

/// The bytes that the layers keep on the first stage.
double first_stage_activation_bytes(const PublishedGpt& gpt,
                                    const PublishedRun& run,
                                    ActivationScheme scheme);

/// The bytes that the first stage keeps outside the layers under tensor + sequence parallelism: the
/// embedding's dropout mask, and without a pipeline the last LayerNorm, the output layer and the
/// loss. Korthikanti et al. 2022, §4.3: s·b·h/t·(p + [p = 1]·4·(1 + V/h)).
double outer_activation_bytes(const PublishedGpt& gpt, const PublishedRun& run);

/// The bytes of parameters and optimizer states of the layers' matrices, 18 bytes each, cut over
/// t·p ranks; the states of Korthikanti et al. 2022, Figure 1.
double block_state_bytes(const PublishedGpt& gpt, const PublishedRun& run);

/// The model states of a rank in mixed precision with Adam, stages 0 to 3: Rajbhandari et al. 2020,
/// §5 and Table 1.
double zero_model_state_bytes(double parameters, int stage, std::int64_t data_ranks);

/// The formats in which Megatron-LM keeps weights and gradients.
enum class MegatronPrecision : std::uint8_t { kF16, kBF16WithF32Gradients, kF32 };

/// The bytes per parameter of weights, gradients and Adam in Megatron-LM; its distributed optimizer
/// cuts the states over `data_ranks`, 1 without it. Megatron-LM's user guide, "Distributed
/// Optimizer".
double megatron_bytes_per_parameter(MegatronPrecision precision, std::int64_t data_ranks);

/// All of it for one model and run, for people: one line a figure with where it is published.
std::string published_text(const ModelSpec& model,
                           std::int64_t sequence_length,
                           const PublishedRun& run);

}  // namespace dstrain
