// The table of one instruction set.
#include "kernels/cpu/vector/parts.h"

namespace dstrain::DSTRAIN_ISA {

void fill_loops(VectorLoops* loops) {
  fill_elementwise(loops);
  fill_optimizers(loops);
  fill_norm(loops);
  fill_group_norm(loops);
  fill_cross_entropy(loops);
  fill_attention(loops);
  fill_generation(loops);
  fill_fp8(loops);
  fill_dropout(loops);
  fill_unit_rows(loops);
  fill_low_rank(loops);
  fill_matmul(loops);
  fill_block_code(loops);
  fill_sign_code(loops);
  fill_top_code(loops);
  fill_orthonormal(loops);
}

}  // namespace dstrain::DSTRAIN_ISA
