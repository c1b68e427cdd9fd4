// Blocks of elements moved from places to others: the floor is the bytes of both.
#include <algorithm>
#include <cstring>

#include "kernels/block_copy_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {
namespace {

/// Elements of a task: small enough to share out evenly, large enough to stream from memory.
constexpr std::int64_t kPiece = 1 << 15;

/// Calls body(at_from, at_to, n) for pieces of runs that cover the copy, from several threads.
template <typename Body>
void for_each_piece(int threads, const BlockCopy& copy, const Body& body) {
  const std::int64_t pieces = (copy.run + kPiece - 1) / kPiece;  // of a run
  const std::int64_t neighbours = std::max<std::int64_t>(1, kPiece / copy.run);
  parallel_pieces(threads, copy.runs() * pieces, neighbours,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                      const std::int64_t c = i % pieces * kPiece;
                      body(copy.place(copy.from, i / pieces) + c,
                           copy.place(copy.to, i / pieces) + c, std::min(kPiece, copy.run - c));
                    }
                  });
}

}  // namespace

void CpuOps::copy_blocks(
    const BlockCopy& blocks, ConstTensor from, Tensor to, Write write, Stream& stream) {
  if (!expect_block_copy(blocks, from, to, write)) {
    return;
  }
  const BlockCopy copy = in_longest_runs(blocks);
  stream.run([=, this, threads = threads_on(stream)] {
    if (write == Write::kOverwrite) {
      const std::int64_t size = size_of(to.dtype());
      for_each_piece(threads, copy, [&](std::int64_t at_from, std::int64_t at_to, std::int64_t n) {
        std::memcpy(pointer<std::byte>(to) + at_to * size,
                    pointer<std::byte>(from) + at_from * size, static_cast<std::size_t>(n * size));
      });
      return;
    }
    with_loops(loops_, to.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      for_each_piece(threads, copy, [&](std::int64_t at_from, std::int64_t at_to, std::int64_t n) {
        T* const sum = pointer<T>(to) + at_to;
        loops.add(sum, pointer<T>(from) + at_from, sum, n);
      });
    });
  });
}

}  // namespace dstrain
