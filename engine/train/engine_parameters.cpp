// What an engine does about parameters outside steps: their first values, their copies after
// masters have changed by other means than an update, and a reference.
#include <algorithm>
#include <vector>

#include "engine/model/init.h"
#include "engine/train/engine.h"
#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"

namespace dstrain {

/// Works in pieces: all values of a table at once would take as much memory again as the table, at
/// a moment when the whole arena is resident.
void Engine::draw_parameters(const std::function<bool(const ParamDecl&)>& which) {
  constexpr std::int64_t kElementsAtATime = 1 << 20;
  std::vector<float> values;
  std::vector<BF16> narrow;
  std::vector<F16> half;
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const Site site = context_.site(RegionKind::kMaster, unit);
    const UnitDecl& decl = plan_.blueprint.units()[static_cast<std::size_t>(unit)];
    const Range owned = plan_.memory.owned(unit);
    for (const PlacedPiece& placed : plan_.shards.pieces(unit, owned)) {
      const ParamDecl& param = decl.params[static_cast<std::size_t>(placed.param)];
      if (!which(param)) continue;
      const std::int64_t size = placed.piece.flat.size();
      for (std::int64_t done = 0; done < size; done += kElementsAtATime) {
        const std::int64_t count = std::min(kElementsAtATime, size - done);
        const std::int64_t begin = placed.offset - owned.begin + done;
        const Tensor master = arena_.master(unit).flat(begin, begin + count);
        values.resize(static_cast<std::size_t>(count));
        initial_values(param, plan_.seed, placed.piece.flat.begin + done, values, threads_);
        const void* host = values.data();
        if (master.dtype() == DType::kBF16) {
          narrow.resize(values.size());
          // A lambda, since a function that is always inlined has no address in some compilers and
          // optimisation levels.
          std::transform(values.begin(), values.end(), narrow.begin(),
                         [](float value) { return to_bf16(value); });
          host = narrow.data();
        } else if (master.dtype() == DType::kF16) {
          half.resize(values.size());
          std::transform(values.begin(), values.end(), half.begin(),
                         [](float value) { return to_f16(value); });
          host = half.data();
        }
        site.device.copy_from_host(host, master, site.stream);
        site.stream.synchronize();
      }
    }
  }
}

/// Goes the way of an evaluation, which has everything gathered that is to be.
void Engine::visit_parameters(const std::function<void(int unit, ConstTensor whole)>& visit) {
  std::vector<bool> is_done(plan_.blueprint.units().size());
  for (const ChunkPlan& chunk : plan_.chunks) {
    data_parallel_->begin_walk(chunk.evaluation_walk, true);
    for (const UnitVisit& here : chunk.stage.evaluation_walk()) {
      data_parallel_->before_visit(here);
      for (const int unit : here.reads) {
        if (is_done[static_cast<std::size_t>(unit)]) continue;
        is_done[static_cast<std::size_t>(unit)] = true;
        visit(unit, context_.parameters.whole(unit));
      }
      data_parallel_->after_visit(here);
    }
  }
}

void Engine::keep_reference() {
  visit_parameters([&](int unit, ConstTensor whole) {
    const BufferRef kept = plan_.reference.at(static_cast<std::size_t>(unit));
    if (kept.index < 0) return;
    const Tensor copy = context_.buffer(kept);
    context_.device.copy(whole.flat(0, copy.numel()), copy, context_.compute);
  });
  context_.compute.synchronize();
}

void Engine::use_reference(bool use) {
  context_.without_adapters = use;
  settle();
  for (std::size_t i = 0; i < plan_.reference.size(); ++i) {
    if (plan_.reference[i].index < 0) continue;
    const int unit = static_cast<int>(i);
    parameters_.set(unit, use ? ConstTensor(context_.buffer(plan_.reference[i]))
                              : ConstTensor(arena_.unit(RegionKind::kParameters, unit)));
  }
}

void Engine::refresh_parameters() {
  data_parallel_->refresh_parameters();
  settle();
  context_.compute.synchronize();
}

}  // namespace dstrain
