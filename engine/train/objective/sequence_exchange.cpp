#include "engine/train/objective/sequence_exchange.h"

#include <algorithm>

namespace dstrain {

SequenceExchange::SequenceExchange(const RunPlan& plan, const LayerContext& context)
    : plan_(plan),
      context_(context),
      own_(static_cast<std::size_t>(plan.batch.own_tokens())),
      losses_(static_cast<std::size_t>(plan.batch.micro_batch * plan.batch.sequence)),
      weights_(losses_.size()) {}

std::int64_t SequenceExchange::host_bytes(const RunPlan& plan) {
  if (!plan.shape.weighs_targets) return 0;
  const std::int64_t whole = plan.batch.micro_batch * plan.batch.sequence;
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

std::span<const float> SequenceExchange::fetch(ConstTensor losses) {
  Device& device = context_.device;
  Stream& stream = context_.compute;
  if (plan_.batch.context.ranks() == 1) {
    device.copy_to_host(losses, losses_.data(), stream);
    stream.synchronize();
    return losses_;
  }
  device.copy_to_host(losses, own_.data(), stream);
  stream.synchronize();
  // Each rank adds its tokens to zeros: exact, and in whatever order they lie.
  std::fill(losses_.begin(), losses_.end(), 0.0F);
  auto from = own_.cbegin();
  for_each_own_run([&](std::int64_t begin, std::int64_t size) {
    std::copy_n(from, size, losses_.begin() + begin);
    from += size;
  });
  const Tensor whole = context_.buffer(plan_.sequence_losses);
  device.copy_from_host(losses_.data(), whole, stream);
  for (Communicator* const group : {context_.context_groups.ring, context_.context_groups.heads}) {
    if (group != nullptr) group->all_reduce(whole, ReduceOp::kSum, Purpose::kMetric, stream);
  }
  device.copy_to_host(whole, losses_.data(), stream);
  stream.synchronize();
  return losses_;
}

void SequenceExchange::send(Tensor weights) {
  auto to = own_.begin();
  for_each_own_run([&](std::int64_t begin, std::int64_t size) {
    to = std::copy_n(weights_.cbegin() + begin, size, to);
  });
  context_.device.copy_from_host(own_.data(), weights, context_.compute);
  context_.compute.synchronize();
}

}  // namespace dstrain
