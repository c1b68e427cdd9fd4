// Carver: pieces of one block of scratch memory.
#pragma once

#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {

/// Hands out pieces of the task's scratch memory, each aligned to 64 bytes. With a null base it
/// counts what would be handed out.
struct Carver {
  std::uintptr_t next;

  template <typename E>
  DSTRAIN_INLINE E* take(std::int64_t elements) {
    E* piece = reinterpret_cast<E*>(next);
    next += (static_cast<std::uintptr_t>(elements) * sizeof(E) + 63U) & ~std::uintptr_t{63U};
    return piece;
  }
};

}  // namespace dstrain::DSTRAIN_ISA
