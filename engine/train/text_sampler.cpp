#include "engine/train/text_sampler.h"

#include "kernels/core/check.h"

namespace dstrain {
namespace {

LayerContext context_of(const Engine& engine,
                        ParameterTable& whole,
                        const TensorParallel& tensor_parallel,
                        ExpertTally& expert_tally) {
  const LayerContext& trained = engine.context();
  const SamplingPlan& plan = *engine.plan().sampling;
  return {{.ops = trained.ops,
           .device = trained.device,
           .compute = trained.compute,
           .blueprint = plan.blueprint,
           .arena = trained.arena,
           .parameters = plan.parameters.empty() ? trained.parameters : whole,
           .experts = &expert_tally},
          tensor_parallel};
}

}  // namespace

TextSampler::TextSampler(Engine& engine)
    : engine_(engine),
      whole_(static_cast<int>(engine.plan().sampling->parameters.size())),
      tensor_parallel_(engine.context().tensor_parallel.group(), /*sequence_parallel=*/false),
      model_(engine.plan().model,
             engine.plan().sampling->sizes,
             engine.plan().sampling->stage,
             context_of(engine, whole_, tensor_parallel_, expert_tally_)) {
  model_.prepare();
}

TextSampler::Readers TextSampler::readers() const {
  const Mesh& mesh = engine_.plan().mesh;
  const int rank = engine_.plan().rank;
  const int mine = mesh.index(Axis::kTensor, rank);
  Readers readers{.groups = mesh.world_size() / mesh.degree(Axis::kTensor), .tells = mine == 0};
  for (int other = 0; other < rank; ++other) {
    readers.group += mesh.index(Axis::kTensor, other) == mine ? 1 : 0;
  }
  return readers;
}

CachedModel& TextSampler::begin() {
  engine_.settle();
  const LayerContext& context = engine_.context();
  const std::vector<UntrainedDecl>& trained = engine_.plan().blueprint.untrained();
  const std::vector<UntrainedDecl>& sampled = engine_.plan().sampling->blueprint.untrained();
  check(trained.size() == sampled.size(),
        "{} tensors that are not trained, {} where texts are read", trained.size(), sampled.size());
  for (std::size_t i = 0; i < trained.size(); ++i) {
    context.device.copy(context.buffer(trained[i].buffer), context.buffer(sampled[i].buffer),
                        context.compute);
  }
  if (const std::vector<BufferRef>& copies = engine_.plan().sampling->parameters; !copies.empty()) {
    engine_.visit_parameters([&](int unit, ConstTensor parameters) {
      const Tensor copy = context.buffer(copies[static_cast<std::size_t>(unit)]);
      context.device.copy(parameters.flat(0, copy.numel()), copy, context.compute);
      whole_.set(unit, copy);
    });
  }
  model_.rewind(0);
  return model_;
}

}  // namespace dstrain
