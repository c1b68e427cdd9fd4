#include "engine/train/run_plan.h"

namespace dstrain {

std::int64_t BatchPlan::tokens_after(std::int64_t steps, std::int64_t consumed) const {
  if (!sequence_ramp) {
    return consumed * sequence;
  }
  std::int64_t tokens = 0;
  std::int64_t samples = 0;
  for (std::int64_t step = 1; step <= steps; ++step) {
    const std::int64_t batch = samples_at(samples);
    tokens += batch * sequence_at(step);
    samples += batch;
  }
  return tokens;
}
namespace {

/// The blueprint of the model on a single rank.
Blueprint blueprint_of_model(const RunPlan& plan) {
  Blueprint whole;
  TransformerStage::declare(
      {.model = plan.model, .fp8 = plan.fp8.has_value(), .adapters = plan.shape.adapters},
      plan.recompute, {.first_block = 0, .end_block = plan.model.num_layers}, whole);
  return whole;
}

}  // namespace

std::set<std::string> parameter_names(const RunPlan& plan) {
  std::set<std::string> names;
  const Blueprint whole = blueprint_of_model(plan);
  for (const UnitDecl& unit : whole.units()) {
    for (const ParamDecl& param : unit.params) {
      names.insert(param.name);
    }
  }
  for (const UntrainedDecl& untrained : whole.untrained()) {
    names.insert(untrained.name);
  }
  return names;
}

std::vector<ScaledTensorDecl> scaled_tensors(const RunPlan& plan) {
  return blueprint_of_model(plan).scaled_tensors();
}

}  // namespace dstrain
