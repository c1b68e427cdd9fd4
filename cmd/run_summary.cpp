#include "cmd/run_summary.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/plan/schedule.h"
#include "engine/train/make_run_plan.h"

namespace dstrain {
namespace {

bool splits_tokens(const Config& config) {
  return config.tensor_parallel.size > 1 && config.tensor_parallel.sequence_parallel;
}

std::int64_t tokens_of_step(const Config& config) {
  return *config.batch.train_batch_size * config.data.sequence_length;
}

/// "; from 16 sequences, 8 more at a time until sample 5,000; from 64 tokens a sequence".
std::string growth_text(const Config& config) {
  std::string text;
  if (const auto& ramp = config.rampup_batch_size) {
    text += fmt::format("; from {}, {} more at a time until sample {}",
                        counted(ramp->start, "sequence"), ramp->increment, grouped(ramp->samples));
  }
  if (config.curriculum.enabled) {
    text += fmt::format("; from {} a sequence", counted(config.curriculum.length_at(1), "token"));
  }
  return text;
}

/// How experts are chosen and kept busy, in a line; nothing of a model without experts.
std::string experts_text(const Config& config) {
  const ExpertsSpec& experts = config.model.experts;
  if (experts.count == 0) return "";
  const bool knows_balance = experts.balance_coefficient != 0.0F;
  std::string losses = "no balance loss";
  if (knows_balance && config.model.adds_balance_loss) {
    losses = fmt::format("balance loss × {:g}", experts.balance_coefficient);
  } else if (knows_balance) {
    losses += ", since model.output_router_logits is false";
  }
  if (experts.z_coefficient != 0.0F) {
    losses += fmt::format("; z loss × {:g}", experts.z_coefficient);
  }
  if (const auto factor = config.training.expert_capacity_factor) {
    losses += fmt::format("; tokens beyond {:g} times an even share are dropped", *factor);
  }
  return fmt::format("experts     {} in a layer, {} for each token; {}\n", experts.count,
                     experts.per_token, losses);
}

std::string schedule_text(const RunOutline& outline, const Config& config) {
  if (config.pipeline.stages == 1) {
    return "one stage";
  }
  const int chunks = config.pipeline.virtual_stages;
  return fmt::format("{}{}; ranks idle {:.1f} % of a step if a backward takes two forwards",
                     name_of(order_of(config)),
                     chunks > 1 ? fmt::format(", {} chunks of the model a stage", chunks) : "",
                     100.0 * outline.idle_share);
}

std::string parameters_text(const RunOutline& outline) {
  const std::string all = grouped(outline.parameters);
  return outline.trained == outline.parameters
             ? all
             : fmt::format("{}, {} trained", all, grouped(outline.trained));
}

}  // namespace

std::string degrees_text(const Mesh& mesh) {
  const int context = mesh.degree(kContextAxes);
  const int experts = mesh.degree(Axis::kExpert);
  return fmt::format(
      "{} pipeline × {} data × {}{} tensor{}", mesh.degree(Axis::kPipeline), mesh.degree(kDataAxes),
      context == 1 ? "" : fmt::format("{} context × ", context), mesh.degree(Axis::kTensor),
      experts == 1 ? "" : fmt::format("; experts over {}", experts));
}

std::string summary_text(const RunOutline& outline, const Config& config) {
  const Mesh& mesh = outline.mesh;
  return fmt::format(
      "ranks       {} = {}{}; ZeRO stage {}\n"
      "parameters  {}\n"
      "{}"
      "step        {} of {} = {} tokens, in {} of {}{}\n"
      "schedule    {}\n",
      mesh.world_size(), degrees_text(mesh), splits_tokens(config) ? ", sequence parallel" : "",
      config.zero.stage, parameters_text(outline), experts_text(config),
      counted(*config.batch.train_batch_size, "sequence"), config.data.sequence_length,
      grouped(tokens_of_step(config)),
      counted(*config.batch.gradient_accumulation_steps, "micro-batch", "micro-batches"),
      *config.batch.micro_batch_size, growth_text(config), schedule_text(outline, config));
}

nlohmann::ordered_json summary_json(const RunOutline& outline, const Config& config) {
  const Mesh& mesh = outline.mesh;
  nlohmann::ordered_json ramp;  // null: all steps are alike
  if (const auto& of = config.rampup_batch_size) {
    ramp = {{"start", of->start}, {"increment", of->increment}, {"samples", of->samples}};
  }
  return {{"ranks", mesh.world_size()},
          {"layout", layout_json(mesh, config)},
          {"parameters", outline.parameters},
          {"trained_parameters", outline.trained},
          {"step",
           {{"sequences", *config.batch.train_batch_size},
            {"tokens", tokens_of_step(config)},
            {"micro_batch_size", *config.batch.micro_batch_size},
            {"micro_batches", *config.batch.gradient_accumulation_steps},
            {"rampup_batch_size", ramp}}},
          {"schedule",
           {{"order", name_of(order_of(config))},
            {"chunks", config.pipeline.virtual_stages},
            {"idle_share", outline.idle_share}}}};
}

}  // namespace dstrain
