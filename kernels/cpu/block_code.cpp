// Floats coded block by block as small integers (kernels/math/block_code.h). A task is a block.
#include <algorithm>

#include "kernels/block_code_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {
namespace {

struct Block {
  std::int64_t first;  ///< of its values, among all
  std::int64_t size;
  std::int64_t codes;  ///< its first byte
  std::int64_t scale;  ///< likewise
};

/// Calls body for the blocks of all parts.
template <typename Body>
void for_each_block(int threads,
                    const BlockCode& code,
                    const CodedParts& parts,
                    std::int64_t elements,
                    Body&& body) {
  const std::int64_t blocks = code.blocks(elements);
  parallel_for(threads, parts.count * blocks, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t part = task / blocks;
    const std::int64_t block = task % blocks;
    const std::int64_t first = block * code.block();
    const std::int64_t begin = part * parts.stride * code.bytes(elements);
    body(Block{.first = part * elements + first,
               .size = std::min(code.block(), elements - first),
               .codes = begin + code.code_bytes(first),
               .scale = begin + code.scale_offset(elements) +
                        block * static_cast<std::int64_t>(sizeof(float))});
  });
}

}  // namespace

void CpuOps::encode_blocks(const BlockCode& code,
                           const CodedParts& parts,
                           ConstTensor values,
                           Tensor coded,
                           Stream& stream) {
  const std::int64_t elements = expect_block_code(code, parts, values, coded);
  stream.run([=, this, threads = threads_on(stream)] {
    auto* const bytes = pointer<std::uint8_t>(coded);
    with_loops(loops_, values.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      for_each_block(threads, code, parts, elements, [&](const Block& block) {
        const T* const x = pointer<T>(values) + block.first;
        const BlockScale scale =
            block_scale(loops.largest_magnitude(x, block.size), code.largest());
        *reinterpret_cast<float*>(bytes + block.scale) = scale.scale;
        if (code.bits == 8) {
          loops.encode_8_bits(x, scale.inverse, bytes + block.codes, block.size);
        } else {
          loops.encode_4_bits(x, x + block.size / 2, scale.inverse, bytes + block.codes,
                              block.size / 2);
        }
      });
    });
  });
}

void CpuOps::decode_blocks(const BlockCode& code,
                           const CodedParts& parts,
                           ConstTensor coded,
                           Tensor values,
                           Write write,
                           Stream& stream) {
  const std::int64_t elements = expect_block_code(code, parts, values, coded);
  const bool adds = write == Write::kAdd;
  stream.run([=, this, threads = threads_on(stream)] {
    const auto* const bytes = pointer<std::uint8_t>(coded);
    with_loops(loops_, values.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      for_each_block(threads, code, parts, elements, [&](const Block& block) {
        T* const y = pointer<T>(values) + block.first;
        const float scale = *reinterpret_cast<const float*>(bytes + block.scale);
        const std::uint8_t* const codes = bytes + block.codes;
        if (code.bits == 8) {
          loops.decode_8_bits(codes, scale, y, adds, block.size);
        } else {
          const std::int64_t half = block.size / 2;
          loops.decode_4_bits(codes, 0, scale, y, adds, half);
          loops.decode_4_bits(codes, 4, scale, y + half, adds, half);
        }
      });
    });
  });
}

}  // namespace dstrain
