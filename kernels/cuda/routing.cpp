// How tokens choose experts, and the order of their rows.
//
// N tokens (B sequences × T positions), E experts, K chosen of them per token
#include "kernels/cuda/device/routing.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"
#include "kernels/routing_operands.h"

namespace dstrain {
namespace {

cuda::Router on_device(const RouterRule& rule,
                       const RouterSizes& sizes,
                       const ConstTensor& logits) {
  return {.rule = rule,
          .tokens = sizes.tokens,
          .experts = sizes.experts,
          .piece = sizes.piece,
          .length = sizes.length,
          .counted = sizes.counted,
          .logits = pointer<float>(logits)};
}

}  // namespace

void CudaOps::choose_experts(const ExpertChoice& choice, Stream& stream) {
  const RouterSizes sizes = expect_choice(choice);
  cuda::choose_experts(on(stream), on_device(choice.rule, sizes, choice.logits_NE),
                       pointer<float>(choice.bias_E), pointer<float>(choice.logsumexp_N),
                       pointer<std::int32_t>(choice.chosen_NK), pointer<float>(choice.weights_NK));
}

void CudaOps::measure_experts(const ExpertLoad& load, Stream& stream) {
  const RouterSizes sizes = expect_load(load);
  cuda::measure_experts(
      on(stream), on_device(load.rule, sizes, load.logits_NE), pointer<float>(load.logsumexp_N),
      pointer<std::int32_t>(load.chosen_NK), pointer<std::int32_t>(load.counts_BE),
      pointer<std::int32_t>(load.ranks_counts_BE), pointer<float>(load.balance_BE));
}

void CudaOps::choose_experts_backward(const ExpertChoiceBackward& back, Stream& stream) {
  const RouterSizes sizes = expect_choice_backward(back);
  const auto length = static_cast<float>(sizes.length);
  with_dtype(back.d_logits_NE.dtype(), [&]<typename T>() {
    cuda::choose_experts_backward<T>(
        on(stream), on_device(back.rule, sizes, back.logits_NE),
        {.logsumexp = pointer<float>(back.logsumexp_N),
         .chosen = pointer<std::int32_t>(back.chosen_NK),
         .weights = pointer<float>(back.weights_NK),
         .d_weights = pointer<float>(back.d_weights_NK),
         .counts = pointer<std::int32_t>(back.counts_BE),
         .share_scale = back.balance_scale * static_cast<float>(sizes.experts) / (length * length),
         .z_scale = back.z_scale,
         .d_logits = pointer<T>(back.d_logits_NE)});
  });
}

void CudaOps::order_by_expert(const ExpertOrder& order, Stream& stream) {
  const OrderSizes sizes = expect_order(order);
  const Launch to = on(stream);
  const Scratch starts(order.counts_BE.bytes(), to.stream);
  cuda::order_by_expert(to,
                        {.slots = sizes.slots,
                         .experts = sizes.experts,
                         .sequences = sizes.sequences,
                         .capacity = order.capacity,
                         .chosen = pointer<std::int32_t>(order.chosen_NK),
                         .counts = pointer<std::int32_t>(order.counts_BE),
                         .rows = pointer<std::int32_t>(order.rows_E),
                         .sorted_slots = pointer<std::int32_t>(order.slots_NK),
                         .places = pointer<std::int32_t>(order.places_NK)},
                        starts.as<std::int32_t>());
}

}  // namespace dstrain
