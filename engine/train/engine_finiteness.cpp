// The engine's answers when a step's gradients were not finite: whose they were, and whether the
// parameters still are.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "engine/train/engine.h"
#include "engine/train/gradient_probe.h"
#include "kernels/core/caller_stream.h"

namespace dstrain {

std::optional<Engine::BadGradient> Engine::find_bad_gradient(const LoadBatch& data,
                                                             std::int64_t start_sample,
                                                             const StepParams& params) {
  GradientProbe probe(*data_parallel_, parts_);
  StepTimes unused;
  run_micro_batches(data, start_sample, params, probe, unused, Take::kOneByOne);

  constexpr std::int64_t kFields = 3;  // found, micro-batch, parameter
  std::array<std::int32_t, kFields> mine{};
  const std::set<std::string> names = parameter_names(plan_);  // the same on every rank
  if (const auto& finding = probe.finding()) {
    const std::string& name = plan_.blueprint.param({finding->unit, finding->param}).name;
    mine = {1, static_cast<std::int32_t>(finding->micro_batch),
            static_cast<std::int32_t>(std::distance(names.begin(), names.find(name)))};
  }
  std::vector<std::int32_t> all(
      static_cast<std::size_t>(groups_[GroupId::kWorld].size() * kFields));
  CallerStream host;
  groups_[GroupId::kWorld].all_gather(
      {mine.data(), DType::kI32, Shape{kFields}},
      {all.data(), DType::kI32, Shape{groups_[GroupId::kWorld].size() * kFields}},
      Purpose::kControl, host);
  for (int rank = 0; rank < groups_[GroupId::kWorld].size(); ++rank) {
    const auto* const found = all.data() + rank * kFields;
    if (found[0] != 0) {
      return BadGradient{
          .micro_batch = found[1], .rank = rank, .tensor = *std::next(names.begin(), found[2])};
    }
  }
  return std::nullopt;
}

bool Engine::parameters_are_finite() {
  settle();
  double elsewhere = 0.0;
  const Tensor total = arena_.buffer(plan_.norm_total);
  context_.ops.zero(total, context_.compute);
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const Site site = context_.site(RegionKind::kMaster, unit);
    const bool is_here = arena_.space(RegionKind::kMaster, unit) == Space::kDevice;
    const Tensor sum = is_here ? total : Tensor{&elsewhere, DType::kF64, Shape{1}};
    const Range owned = plan_.memory.owned(unit);
    for (const PlacedPiece& piece : plan_.shards.pieces(unit, owned)) {
      const std::int64_t begin = piece.offset - owned.begin;
      site.visit_parts(arena_.master(unit).flat(begin, begin + piece.piece.flat.size()),
                       [&](ConstTensor part, std::int64_t /*first*/, Stream& stream) {
                         site.ops.sum_of_squares(part, sum, Write::kAdd, stream);
                       });
    }
  }
  settle();
  double sum_of_squares = 0.0;
  context_.device.copy_to_host(total, &sum_of_squares, context_.compute);
  context_.compute.synchronize();
  sum_of_squares += elsewhere;
  CallerStream host;
  groups_[GroupId::kWorld].all_reduce({&sum_of_squares, DType::kF64, Shape{1}}, ReduceOp::kSum,
                                      Purpose::kControl, host);
  return std::isfinite(sum_of_squares);
}

}  // namespace dstrain
