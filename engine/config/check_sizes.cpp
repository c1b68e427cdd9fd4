// Refuses sizes that are each allowed but together come to more than any machine holds. It does so
// in floating point, before they reach arithmetic that would overflow or loops that would not end.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/config/arch/family.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

/// Parameters: a hundred times more than any model has had.
constexpr double kMostParameters = 1e15;
/// Numbers that one rank would keep from forward to backward.
constexpr double kMostActivations = 5e16;
constexpr double kMostTokens = 1e18;  ///< of a step, over all ranks
/// Forwards of micro-batches through the chunks of the model, in a step of one pipeline: all are
/// ordered, and proved not to wait for each other, before anything starts. The second limit is on
/// how often a rank visits a block in that step, which the estimate keeps track of. At both limits
/// this takes about a quarter of a second and 200 MiB.
constexpr double kMostPasses = 200'000;
constexpr double kMostVisits = 400'000;

double real(std::int64_t value) {
  return static_cast<double>(value);
}

struct NamedSize {
  std::string path;
  double value = 0.0;
};

/// Refuses a product and blames its largest factor, which is named as in the config.
[[noreturn]] void refuse(std::vector<NamedSize> factors,
                         Origins& origins,
                         const std::string& message) {
  const NamedSize& largest =
      *std::max_element(factors.begin(), factors.end(),
                        [](const NamedSize& a, const NamedSize& b) { return a.value < b.value; });
  throw_config_error(origins[largest.path], largest.path,
                     fmt::format("{:.15g}: {}", largest.value, message));
}

double parameters_of(const ModelSpec& m) {
  const double width = real(m.hidden_size);
  const double heads =
      (2.0 * real(m.num_heads) + 2.0 * real(m.num_key_value_heads)) * real(m.head_dim);
  const double experts =
      real(m.experts.count) * real(m.width_of_expert()) + real(m.experts.shared_width);
  const double inner = std::max(real(m.intermediate_size), experts);
  const double block = width * (heads + 3.0 * inner);
  return real(m.num_layers) * block + 2.0 * width * (real(m.vocab_size) + real(m.max_positions));
}

/// About how many numbers one token leaves in one block.
double activations_of_token(const ModelSpec& m) {
  const double experts =
      real(m.experts.per_token) * real(m.width_of_expert()) + real(m.experts.shared_width);
  return 6.0 * real(m.hidden_size) + 3.0 * std::max(real(m.intermediate_size), experts) +
         2.0 * (real(m.num_heads) + 2.0 * real(m.num_key_value_heads)) * real(m.head_dim);
}

}  // namespace

void check_model_size(const LoadedConfig& loaded, Origins& origins) {
  const ModelSpec& m = loaded.config.model;
  const double parameters = parameters_of(m);
  if (parameters <= kMostParameters) return;
  const bool has_head_dim = family_of(m).has_key_value_keys;
  std::vector<NamedSize> sizes = {
      {"model.vocab_size", real(m.vocab_size)},
      {key_path(m, "hidden_size"), real(m.hidden_size)},
      {key_path(m, "num_attention_heads"), real(m.num_heads)},
      {key_path(m, has_head_dim ? "head_dim" : "hidden_size"), real(m.head_dim)},
      {key_path(m, "max_position_embeddings"), real(m.max_positions)}};
  for (const WidthKey& feed_forward : feed_forward_keys(m)) {
    sizes.push_back({feed_forward.path, real(feed_forward.value)});
  }
  refuse(std::move(sizes), origins,
         fmt::format(
             "makes a model of some {:.1g} parameters, more than the {:.0g} that can be planned",
             parameters, kMostParameters));
}

void check_step_size(const LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins) {
  const Config& config = loaded.config;
  const PipelineConfig& pipeline = config.pipeline;
  const double micro = real(config.batch.micro_batch_size.value());
  const double accumulation = real(config.batch.gradient_accumulation_steps.value());
  const double sequence = real(config.data.sequence_length);
  const double chunks = real(pipeline.stages) * real(pipeline.virtual_stages);
  const std::vector<NamedSize> factors = {{"train_micro_batch_size_per_gpu", micro},
                                          {"gradient_accumulation_steps", accumulation},
                                          {"data.sequence_length", sequence}};
  // The embedding and the head are visited like blocks.
  const double visits = (real(config.model.num_layers) + 2.0) / real(pipeline.stages);
  const double most = std::min(kMostPasses / chunks, std::floor(kMostVisits / visits));
  if (accumulation > most) {
    throw_config_error(
        origins["gradient_accumulation_steps"], "gradient_accumulation_steps",
        fmt::format(
            "{} micro-batches a step are more than the {:.0f} that can be planned for a model "
            "of {} blocks in {}: take larger ones (train_micro_batch_size_per_gpu)",
            *config.batch.gradient_accumulation_steps, std::floor(most), config.model.num_layers,
            chunks > 1.0 ? fmt::format("{:.0f} parts", chunks) : "one part"));
  }
  const double tokens = micro * accumulation * sequence * real(data_parallel);
  if (tokens > kMostTokens) {
    refuse(factors, origins,
           fmt::format("makes {:.1g} tokens a step, more than the {:.0g} that can be planned",
                       tokens, kMostTokens));
  }
  const bool keeps_all = pipeline.schedule == ScheduleKind::kGpipe && pipeline.stages > 1;
  const double in_flight = keeps_all ? accumulation : std::min(accumulation, 2.0 * chunks);
  const double activations = micro * sequence * in_flight * real(config.model.num_layers + 1) *
                             (activations_of_token(config.model) + real(config.model.vocab_size));
  if (activations > kMostActivations) {
    refuse(
        factors, origins,
        fmt::format("makes a rank hold some {:.1g} numbers of micro-batches in flight, more than "
                    "the {:.0g} that can be planned",
                    activations, kMostActivations));
  }
}

}  // namespace dstrain
