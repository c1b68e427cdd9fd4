#include "engine/train/objective/sequence_exchange.h"

#include <algorithm>

namespace dstrain {

SequenceExchange::SequenceExchange(const RunPlan& plan, const LayerContext& context)
    : plan_(plan),
      context_(context),
      all_(static_cast<std::size_t>(plan.batch.micro_batch * plan.batch.sequence)),
      own_(static_cast<std::size_t>(plan.batch.own_tokens())),
      found_(static_cast<std::size_t>(kinds(plan.shape.model)) * all_),
      weights_(found_.size()) {}

std::int64_t SequenceExchange::host_bytes(const RunPlan& plan) {
  if (!plan.shape.weighs_targets) return 0;
  const std::int64_t whole = kinds(plan.shape.model) * plan.batch.micro_batch * plan.batch.sequence;
  return (plan.batch.own_tokens() + 2 * whole) * size_of(DType::kF32);
}

template <typename Visit>
void SequenceExchange::for_each_own_run(Visit&& visit) const {
  const ContextShape& shape = plan_.batch.context;
  const std::int64_t sequence = plan_.batch.sequence;
  for (int index = 0; index < shape.chunks(); ++index) {
    const Range chunk = shape.chunk(index, sequence);
    for (std::int64_t row = 0; row < plan_.batch.micro_batch; ++row) {
      visit(row * sequence + chunk.begin, chunk.size());
    }
  }
}

SequenceNumbers SequenceExchange::fetch(const TargetNumbers& found) {
  Device& device = context_.device;
  Stream& stream = context_.compute;
  const std::span<float> all(found_);
  const SequenceNumbers numbers{.nats_BT = all.first(all_), .values_BT = all.subspan(all_)};
  if (plan_.batch.context.ranks() == 1) {
    device.copy_to_host(found.losses, found_.data(), stream);
    if (!found.values.empty()) device.copy_to_host(found.values, found_.data() + all_, stream);
    stream.synchronize();
    return numbers;
  }
  // Each rank adds its tokens to zeros: exact, and in whatever order they lie.
  std::fill(found_.begin(), found_.end(), 0.0F);
  auto kind = found_.begin();
  for (const ConstTensor& of_kind : {found.losses, found.values}) {
    if (of_kind.empty()) continue;
    device.copy_to_host(of_kind, own_.data(), stream);
    stream.synchronize();
    auto from = own_.cbegin();
    for_each_own_run([&](std::int64_t begin, std::int64_t size) {
      std::copy_n(from, size, kind + begin);
      from += size;
    });
    kind += static_cast<std::ptrdiff_t>(all_);
  }
  const Tensor whole = context_.buffer(plan_.sequence_numbers);
  device.copy_from_host(found_.data(), whole, stream);
  for (Communicator* const group : {context_.context_groups.ring, context_.context_groups.heads}) {
    if (group != nullptr) group->all_reduce(whole, ReduceOp::kSum, Purpose::kMetric, stream);
  }
  device.copy_to_host(whole, found_.data(), stream);
  stream.synchronize();
  return numbers;
}

SequenceWeights SequenceExchange::weights() {
  const std::span<float> all(weights_);
  return {.nats_BT = all.first(all_), .values_BT = all.subspan(all_)};
}

void SequenceExchange::send(const TargetWeights& to) {
  auto kind = weights_.cbegin();
  for (const Tensor& of_kind : {to.losses, to.values}) {
    if (of_kind.empty()) continue;
    auto own = own_.begin();
    for_each_own_run(
        [&](std::int64_t begin, std::int64_t size) { own = std::copy_n(kind + begin, size, own); });
    context_.device.copy_from_host(own_.data(), of_kind, context_.compute);
    context_.compute.synchronize();
    kind += static_cast<std::ptrdiff_t>(all_);
  }
}

}  // namespace dstrain
