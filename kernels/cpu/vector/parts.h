// The functions of this folder's files, each of which fills its part of the table.
#pragma once

#include "kernels/cpu/vector/loops.h"

namespace dstrain::DSTRAIN_ISA {

void fill_elementwise(VectorLoops* loops);
void fill_optimizers(VectorLoops* loops);
void fill_norm(VectorLoops* loops);
void fill_group_norm(VectorLoops* loops);
void fill_cross_entropy(VectorLoops* loops);
void fill_attention(VectorLoops* loops);
void fill_generation(VectorLoops* loops);
void fill_fp8(VectorLoops* loops);
void fill_dropout(VectorLoops* loops);
void fill_unit_rows(VectorLoops* loops);
void fill_low_rank(VectorLoops* loops);
void fill_matmul(VectorLoops* loops);
/// In bf16, where the processor has dot products of pairs.
void fill_low_rank_in_pairs(VectorLoops* loops);
void fill_block_code(VectorLoops* loops);
void fill_sign_code(VectorLoops* loops);
void fill_top_code(VectorLoops* loops);
void fill_orthonormal(VectorLoops* loops);
/// All of them.
void fill_loops(VectorLoops* loops);

}  // namespace dstrain::DSTRAIN_ISA
