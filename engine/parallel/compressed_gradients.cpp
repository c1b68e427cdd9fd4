#include "engine/parallel/compressed_gradients.h"

#include <cmath>
#include <vector>

#include "engine/base/fnv_hash.h"
#include "kernels/core/caller_stream.h"
#include "kernels/core/plain_nan.h"
#include "kernels/math/philox.h"

namespace dstrain {
namespace {

constexpr float kReviving = 1e-12F;

Tensor as_matrix(Tensor numbers, std::int64_t rows, std::int64_t columns) {
  return {numbers.data(), numbers.dtype(), Shape{rows, columns}};
}

}  // namespace

CompressedGradients::CompressedGradients(const DataParallelParts& parts)
    : parts_(parts),
      layout_(*parts.memory.options().compression),
      group_(*parts.groups.groups().front().replicas),
      share_(1.0F / static_cast<float>(layout_.ranks())) {
  check(parts.groups.groups().size() == 1 && group_.size() == layout_.ranks(),
        "compressed gradients travel in one group, of {} ranks", layout_.ranks());
  for (int unit = 0; unit < parts.shards.num_units(); ++unit) {
    parts.context.ops.zero(parts.context.arena.unit(RegionKind::kUnsent, unit),
                           parts.context.compute);
  }
  if (parts.compression.factors.index >= 0) draw_factors();
}

Tensor CompressedGradients::elements(RegionKind kind, int unit, Range range) const {
  return parts_.context.arena.unit(kind, unit).flat(range.begin, range.end);
}
Tensor CompressedGradients::gradient(const Row& row) const {
  return elements(RegionKind::kGradients, row.unit, row.range);
}
Tensor CompressedGradients::remainder(const Row& row) const {
  return elements(RegionKind::kUnsent, row.unit, row.range);
}
Tensor CompressedGradients::left(const Row& row) const {
  const std::int64_t size = row.rows * layout_.width();
  return as_matrix(parts_.context.buffer(parts_.compression.sums).flat(row.left, row.left + size),
                   row.rows, layout_.width());
}
Tensor CompressedGradients::right(const Row& row) const {
  const std::int64_t size = layout_.width() * row.columns;
  return as_matrix(
      parts_.context.buffer(parts_.compression.factors).flat(row.right, row.right + size),
      layout_.width(), row.columns);
}

void CompressedGradients::draw_factors() {
  const ExecContext& context = parts_.context;
  std::vector<float> numbers(static_cast<std::size_t>(layout_.factors()));
  for (const Row& row : layout_.rows()) {
    const ParamDecl& param =
        parts_.shards.unit(row.unit).params[static_cast<std::size_t>(row.param)];
    const auto stream = fnv_hash<std::uint64_t>("powersgd " + param.name);
    for (std::int64_t i = 0; i < layout_.width() * row.columns; ++i) {
      numbers[static_cast<std::size_t>(row.right + i)] =
          normal_at(parts_.seed, stream, static_cast<std::uint64_t>(i));
    }
  }
  for (const BufferRef buffer : {parts_.compression.factors, parts_.compression.start}) {
    context.device.copy_from_host(numbers.data(), context.buffer(buffer), context.compute);
  }
  context.compute.synchronize();
}

StepStats CompressedGradients::step(const StepParams& params, OwnedUpdate& owned) {
  const double own_factor =
      parts_.mean_factor / (params.loss_scale * params.counted_share) * layout_.ranks();
  const double norm = plain_nan(norm_of_all() * own_factor);
  if (!std::isfinite(norm)) {
    return {.grad_norm = norm, .updated = false};
  }
  add_gradients(static_cast<float>(own_factor));
  if (layout_.ranks() == 1) {
    take_own();
  } else {
    layout_.kind() == CompressionKind::kPowerSgd ? exchange_factors() : exchange_largest();
    take_exact_means();
  }
  return owned.step_on_mean(params);
}

/// The norm of the gradients that all ranks have, of whole units. If one of them is not finite, it
/// is not finite on any rank.
double CompressedGradients::norm_of_all() {
  const ExecContext& context = parts_.context;
  context.ops.zero(parts_.norm_total, context.compute);
  for (int unit = 0; unit < parts_.shards.num_units(); ++unit) {
    context.ops.sum_of_squares(
        elements(RegionKind::kGradients, unit, {0, parts_.shards.numel(unit)}), parts_.norm_total,
        Write::kAdd, context.compute);
  }
  double squares = 0.0;
  context.device.copy_to_host(parts_.norm_total, &squares, context.compute);
  context.compute.synchronize();
  if (parts_.world != nullptr) {
    CallerStream host;
    parts_.world->all_reduce({&squares, DType::kF64, Shape{1}}, ReduceOp::kSum, Purpose::kOptimizer,
                             host);
  }
  return std::sqrt(squares / layout_.ranks());
}

void CompressedGradients::add_gradients(float factor) {
  const ExecContext& context = parts_.context;
  for (const Row& row : layout_.rows()) {
    context.ops.add_scaled(gradient(row), factor, remainder(row), Write::kAdd, context.compute);
  }
  for (const CompressionLayout::Exact& exact : layout_.exact()) {
    const Tensor own = elements(RegionKind::kGradients, exact.unit, exact.range);
    const Tensor to =
        layout_.ranks() == 1
            ? own
            : context.buffer(parts_.compression.sums).flat(exact.at, exact.at + exact.range.size());
    context.ops.add_scaled(own, factor, to, Write::kOverwrite, context.compute);
  }
}

void CompressedGradients::sum(Tensor numbers) {
  group_.all_reduce(numbers, ReduceOp::kSum, Purpose::kGradient, parts_.context.compute);
}

void CompressedGradients::exchange_factors() {
  const ExecContext& context = parts_.context;
  Stream& stream = context.compute;
  const auto matrix_of = [](const Row& row, Tensor numbers) {
    return as_matrix(numbers, row.rows, row.columns);
  };
  for (const Row& row : layout_.rows()) {
    context.ops.linear_forward(matrix_of(row, remainder(row)), right(row), {}, left(row), stream);
  }
  sum(context.buffer(parts_.compression.sums));
  if (layout_.rows().empty()) return;
  for (const Row& row : layout_.rows()) {
    context.ops.orthonormalize_columns(left(row), 0.0F, stream);
    context.ops.linear_backward_weight(left(row), matrix_of(row, remainder(row)), right(row),
                                       Write::kOverwrite, stream);
  }
  const Tensor factors = context.buffer(parts_.compression.factors);
  sum(factors);
  context.ops.add_scaled(factors, share_, factors, Write::kOverwrite, stream);
  for (const Row& row : layout_.rows()) {
    context.ops.linear_backward_input(left(row), right(row), matrix_of(row, gradient(row)), stream);
    context.ops.add_scaled(gradient(row), -1.0F, remainder(row), Write::kAdd, stream);
  }
  context.ops.add_scaled(context.buffer(parts_.compression.start), kReviving, factors, Write::kAdd,
                         stream);
}

void CompressedGradients::exchange_largest() {
  const ExecContext& context = parts_.context;
  Stream& stream = context.compute;
  const TopCode code = layout_.code();
  const std::int64_t message = layout_.message_bytes();
  if (message > 0) {
    const Tensor messages = context.buffer(parts_.compression.codes);
    const std::int64_t own = group_.rank() * message;
    for (const Row& row : layout_.rows()) {
      const std::int64_t begin = own + row.code;
      context.ops.encode_largest(
          code, remainder(row), messages.flat(begin, begin + code.bytes(row.range.size())), stream);
    }
    group_.all_gather(messages.flat(own, own + message), messages, Purpose::kGradient, stream);
    for (const Row& row : layout_.rows()) {
      const std::int64_t bytes = code.bytes(row.range.size());
      const Tensor codes =
          context.buffer(parts_.compression.one_row).flat(0, layout_.ranks() * bytes);
      for (int rank = 0; rank < layout_.ranks(); ++rank) {
        const std::int64_t begin = rank * message + row.code;
        context.ops.cast(messages.flat(begin, begin + bytes),
                         codes.flat(rank * bytes, (rank + 1) * bytes), stream);
      }
      context.ops.sum_largest(code, layout_.ranks(), codes, share_, gradient(row), stream);
    }
  }
  if (layout_.sums() > 0) sum(context.buffer(parts_.compression.sums));
}

void CompressedGradients::take_exact_means() {
  const ExecContext& context = parts_.context;
  for (const CompressionLayout::Exact& exact : layout_.exact()) {
    context.ops.add_scaled(
        context.buffer(parts_.compression.sums).flat(exact.at, exact.at + exact.range.size()),
        share_, elements(RegionKind::kGradients, exact.unit, exact.range), Write::kOverwrite,
        context.compute);
  }
}

/// A rank alone tells itself everything.
void CompressedGradients::take_own() {
  const ExecContext& context = parts_.context;
  for (const Row& row : layout_.rows()) {
    context.ops.cast(remainder(row), gradient(row), context.compute);
    context.ops.zero(remainder(row), context.compute);
  }
}

}  // namespace dstrain
