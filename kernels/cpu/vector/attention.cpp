// Attention with f32 tiles, for every instruction set without matrix tiles.
#include "kernels/cpu/vector/flash_attention.h"
#include "kernels/cpu/vector/float_tiles.h"
#include "kernels/cpu/vector/parts.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

template <typename T>
void forward(const AttentionTask<T>& task) {
  flash_forward<FloatTiles>(task);
}

template <typename T>
void backward(const AttentionTask<T>& task) {
  flash_backward<FloatTiles>(task);
}

std::int64_t scratch_bytes(std::int64_t keys, std::int64_t head_dim) {
  return flash_scratch_bytes<FloatTiles>(keys, head_dim);
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->attention_scratch_bytes = scratch_bytes;
  loops->attention_forward = forward<T>;
  loops->attention_backward = backward<T>;
}

}  // namespace

void fill_attention(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
