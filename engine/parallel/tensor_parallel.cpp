#include "engine/parallel/tensor_parallel.h"

namespace dstrain {

Tensor TensorParallel::my_tokens(Tensor whole_NC) const {
  const std::int64_t tokens = whole_NC.dim(0) / size();
  return whole_NC.rows(rank() * tokens, (rank() + 1) * tokens);
}

/// The sum over the ranks: of all tokens on every rank, or of each rank's own tokens.
Tensor TensorParallel::sum(Tensor partial_NC, Stream& compute) const {
  if (splits_tokens_) {
    const Tensor mine = my_tokens(partial_NC);
    group_.reduce_scatter(partial_NC, mine, ReduceOp::kSum, Purpose::kActivation, compute);
    return mine;
  }
  if (size() > 1) {
    group_.all_reduce(partial_NC, ReduceOp::kSum, Purpose::kActivation, compute);
  }
  return partial_NC;
}

ConstTensor TensorParallel::enter(ConstTensor stream, Tensor whole_NC, Stream& compute) const {
  if (!splits_tokens_) {
    return stream;
  }
  group_.all_gather(stream, whole_NC, Purpose::kActivation, compute);
  return whole_NC;
}

Tensor TensorParallel::enter_backward(Tensor d_whole_NC, Stream& compute) const {
  return sum(d_whole_NC, compute);
}

Tensor TensorParallel::leave(Tensor y_NC, Stream& compute) const {
  return sum(y_NC, compute);
}

void TensorParallel::leave_into(Tensor y_NC, Tensor stream, Stream& compute) const {
  if (splits_tokens_) {
    group_.reduce_scatter(y_NC, stream, ReduceOp::kSum, Purpose::kActivation, compute);
  } else {
    check(y_NC.data() == stream.data(), "without sequence parallelism the stream is y itself");
    sum(y_NC, compute);
  }
}

ConstTensor TensorParallel::leave_backward(ConstTensor d_stream,
                                           Tensor d_whole_NC,
                                           Stream& compute) const {
  return enter(d_stream, d_whole_NC, compute);
}

ConstTensor TensorParallel::part_of(ConstTensor whole) const {
  const std::int64_t elements = whole.numel() / size();
  return whole.flat(rank() * elements, (rank() + 1) * elements);
}

void TensorParallel::make_whole(ConstTensor part, Tensor whole, Stream& compute) const {
  check(part.numel() * size() == whole.numel(), "{} ranks hold {} elements each of {}", size(),
        part.numel(), whole.numel());
  group_.all_gather(part, whole, Purpose::kActivation, compute);
}

}  // namespace dstrain
