#include "engine/train/text_sampler.h"

#include "engine/comm/solo_communicator.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

LayerContext context_of(const Engine& engine,
                        const TensorParallel& alone,
                        ExpertTally& expert_tally) {
  const LayerContext& trained = engine.context();
  return {{.ops = trained.ops,
           .device = trained.device,
           .compute = trained.compute,
           .blueprint = engine.plan().sampling->blueprint,
           .arena = trained.arena,
           .parameters = trained.parameters,
           .experts = &expert_tally},
          alone};
}

}  // namespace

TextSampler::TextSampler(Engine& engine)
    : engine_(engine),
      alone_(make_solo_communicator("sampling", &engine.device())),
      tensor_parallel_(*alone_, /*sequence_parallel=*/false),
      model_(engine.plan().model,
             engine.plan().sampling->sizes,
             engine.plan().sampling->stage,
             context_of(engine, tensor_parallel_, expert_tally_)) {
  model_.prepare();
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
  model_.rewind(0);
  return model_;
}

}  // namespace dstrain
