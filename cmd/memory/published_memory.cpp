#include "cmd/memory/published_memory.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/config/arch/model_counts.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

double real(std::int64_t number) {
  return static_cast<double>(number);
}

/// s·b·h: elements of one activation.
double tokens_by_width(const PublishedGpt& gpt, const PublishedRun& run) {
  return real(gpt.sequence_length * run.micro_batch_size * gpt.hidden_size);
}

constexpr std::array kSchemes{
    std::pair{ActivationScheme::kNone, "no parallelism"},
    std::pair{ActivationScheme::kTensor, "tensor"},
    std::pair{ActivationScheme::kTensorSequence, "tensor + sequence"},
    std::pair{ActivationScheme::kTensorSelective, "tensor + selective"},
    std::pair{ActivationScheme::kTensorSequenceSelective, "tensor + sequence + selective"},
    std::pair{ActivationScheme::kFull, "full recomputation"}};
constexpr std::array kPrecisions{
    std::pair{MegatronPrecision::kF16, "fp16, fp16 gradients"},
    std::pair{MegatronPrecision::kBF16WithF32Gradients, "bf16, fp32 gradients"},
    std::pair{MegatronPrecision::kF32, "fp32"}};

std::string heading(const PublishedGpt& gpt, const PublishedRun& run) {
  return fmt::format(
      "Published formulas for a 16-bit GPT with dropout and an MLP of 4 × width:\n"
      "  {} layers × {}, {} heads, {} tokens; sequences of {}, micro-batches of {}\n"
      "  {} pipeline × {} data × {} tensor, {} chunk{} a rank\n"
      "\n",
      gpt.num_layers, gpt.hidden_size, gpt.num_heads, gpt.vocab_size, gpt.sequence_length,
      run.micro_batch_size, run.pipeline, run.data, run.tensor, run.interleave,
      run.interleave == 1 ? "" : "s");
}

std::string line(const std::string& what, const std::string& figure, const std::string& note = {}) {
  return fmt::format("{:<38}{:>14}{}{}\n", what, figure, note.empty() ? "" : "  ", note);
}

}  // namespace

PublishedGpt published_gpt(const ModelSpec& model, std::int64_t sequence_length) {
  return {.vocab_size = model.vocab_size,
          .sequence_length = sequence_length,
          .hidden_size = model.hidden_size,
          .num_layers = model.num_layers,
          .num_heads = model.num_heads};
}

// Per layer 12·h² of matrices, 9·h of biases and 4·h of two LayerNorms; the tables of tokens and
// of positions (as many as the sequence is long) once.
std::int64_t gpt_parameters(const PublishedGpt& gpt) {
  const std::int64_t h = gpt.hidden_size;
  return gpt.num_layers * (12 * h * h + 13 * h) + (gpt.vocab_size + gpt.sequence_length) * h;
}

// Bytes an element of s·b·h: attention 11 (input of q, k, v 2; q and k 4; v 2; input of the
// projection 2; its dropout mask 1), MLP 19 (inputs 2, 8 and 8; mask 1), LayerNorms 4: 34. Tensor
// parallelism leaves 10 of them whole: both LayerNorms' inputs, the inputs of attention and MLP,
// both masks. The scores add 5·a·s/h: softmax 2, its mask 1, its dropout's output 2.
double activation_bytes_per_layer(const PublishedGpt& gpt,
                                  const PublishedRun& run,
                                  ActivationScheme scheme) {
  const double scores = 5.0 * real(gpt.num_heads * gpt.sequence_length) / real(gpt.hidden_size);
  const double t = real(run.tensor);
  const double elements = tokens_by_width(gpt, run);
  switch (scheme) {
    case ActivationScheme::kNone:
      return elements * (34.0 + scores);
    case ActivationScheme::kTensor:
      return elements * (10.0 + (24.0 + scores) / t);
    case ActivationScheme::kTensorSequence:
      return elements * ((34.0 + scores) / t);
    case ActivationScheme::kTensorSelective:
      return elements * (10.0 + 24.0 / t);
    case ActivationScheme::kTensorSequenceSelective:
      return elements * (34.0 / t);
    case ActivationScheme::kFull:
      return elements * 2.0;
  }
  check(false, "activation scheme {}", static_cast<int>(scheme));
  return 0.0;
}

double first_stage_share(const PublishedRun& run) {
  const double p = real(run.pipeline);
  if (run.interleave > 1) return 1.0 + (p - 1.0) / (p * real(run.interleave));
  const bool filled = !run.micro_batches || *run.micro_batches >= run.pipeline;
  return filled ? 1.0 : real(*run.micro_batches) / p;
}

double first_stage_activation_bytes(const PublishedGpt& gpt,
                                    const PublishedRun& run,
                                    ActivationScheme scheme) {
  return activation_bytes_per_layer(gpt, run, scheme) * real(gpt.num_layers) *
         first_stage_share(run);
}

double outer_activation_bytes(const PublishedGpt& gpt, const PublishedRun& run) {
  const double head = 4.0 * (1.0 + real(gpt.vocab_size) / real(gpt.hidden_size));
  return tokens_by_width(gpt, run) / real(run.tensor) *
         (real(run.pipeline) + (run.pipeline == 1 ? head : 0.0));
}

// 18: 2 of the 16-bit weight, 4 of its f32 gradient, 12 of the f32 copy and Adam's two averages.
double block_state_bytes(const PublishedGpt& gpt, const PublishedRun& run) {
  const std::int64_t matrices = 12 * gpt.num_layers * gpt.hidden_size * gpt.hidden_size;
  return 18.0 * real(matrices) / real(run.tensor * run.pipeline);
}

// 2 of the 16-bit weight, 2 of its 16-bit gradient, 12 of the optimizer: f32 copy and two averages.
// Stage 1 cuts the optimizer's, stage 2 the gradient's too, stage 3 all of them.
double zero_model_state_bytes(double parameters, int stage, std::int64_t data_ranks) {
  check(stage >= 0 && stage <= 3, "ZeRO has stages 0 to 3, not {}", stage);
  check(data_ranks >= 1, "{} data-parallel ranks", data_ranks);
  constexpr std::array<double, 4> kWhole = {16, 4, 2, 0};
  const double whole = kWhole[static_cast<std::size_t>(stage)];
  return parameters * whole + parameters * (16.0 - whole) / real(data_ranks);
}

double megatron_bytes_per_parameter(MegatronPrecision precision, std::int64_t data_ranks) {
  check(data_ranks >= 1, "{} data-parallel ranks", data_ranks);
  const double d = real(data_ranks);
  switch (precision) {
    case MegatronPrecision::kF16:  // the optimizer reads f32 gradients, a copy of its slice
      return 4.0 + 16.0 / d;
    case MegatronPrecision::kBF16WithF32Gradients:
      return 6.0 + 12.0 / d;
    case MegatronPrecision::kF32:
      return 8.0 + 8.0 / d;
  }
  check(false, "precision {}", static_cast<int>(precision));
  return 0.0;
}

// Each source's own unit: Korthikanti et al. count GiB of 2^30, Rajbhandari et al. GB of 10^9.
std::string published_text(const ModelSpec& model,
                           std::int64_t sequence_length,
                           const PublishedRun& run) {
  constexpr double kMiB = 1 << 20;
  const PublishedGpt gpt = published_gpt(model, sequence_length);
  const double parameters = real(num_parameters(model));
  std::string text = heading(gpt, run);
  text += line("parameters of such a GPT", fmt::format("{:.3f} B", real(gpt_parameters(gpt)) / 1e9),
               "Narayanan et al. 2021, §5.1");
  text += line("parameters of this model", fmt::format("{:.3f} B", parameters / 1e9));
  text += line("weights and optimizer, layers only", gib_text(block_state_bytes(gpt, run)),
               "18 bytes each: Korthikanti et al. 2022, Figure 1");
  text +=
      "\nactivations of the layers on the first pipeline stage: Korthikanti et al. 2022, "
      "Table 2 and Figure 7\n";
  for (const auto& [scheme, name] : kSchemes) {
    const double bytes = activation_bytes_per_layer(gpt, run, scheme);
    const double of_tensor = activation_bytes_per_layer(gpt, run, ActivationScheme::kTensor);
    text +=
        line(fmt::format("  {}", name), gib_text(first_stage_activation_bytes(gpt, run, scheme)),
             fmt::format("{:.2f} % of tensor, {:.2f} MiB a layer", 100 * bytes / of_tensor,
                         bytes / kMiB));
  }
  text += line("  embedding, head and loss in addition", gib_text(outer_activation_bytes(gpt, run)),
               "§4.3");
  text += "\nmodel states with ZeRO, 16 bytes a parameter: Rajbhandari et al. 2020, Table 1\n";
  const double held = parameters / real(run.tensor * run.pipeline);
  for (int stage = 0; stage <= 3; ++stage) {
    text += line(fmt::format("  stage {}", stage),
                 fmt::format("{:.2f} GB", zero_model_state_bytes(held, stage, run.data) / 1e9));
  }
  text += "\nbytes a parameter with the distributed optimizer: Megatron-LM's user guide\n";
  for (const auto& [precision, name] : kPrecisions) {
    text += line(fmt::format("  {}", name),
                 fmt::format("{:.2f}", megatron_bytes_per_parameter(precision, run.data)));
  }
  return text;
}

}  // namespace dstrain
