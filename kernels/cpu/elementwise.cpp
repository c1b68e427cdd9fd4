// Addition, conversion and zeros: one pass over flat ranges.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include <emmintrin.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/elementwise_operands.h"

namespace dstrain {
namespace {

/// Elements of a task: small enough to share out evenly, large enough to stream from memory.
constexpr std::int64_t kPiece = 1 << 15;

/// Zeros by non-temporal stores, which want addresses that are multiples of 16.
void stream_zeros(std::byte* data, std::int64_t bytes) {
  const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) % 16);
  const std::int64_t head = std::min(bytes, (16 - misaligned) % 16);
  std::memset(data, 0, static_cast<std::size_t>(head));
  std::int64_t at = head;
  for (; at + 16 <= bytes; at += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(data + at), _mm_setzero_si128());
  }
  std::memset(data + at, 0, static_cast<std::size_t>(bytes - at));
  _mm_sfence();
}

}  // namespace

void CpuOps::add(ConstTensor a, ConstTensor b, Tensor y, Stream& stream) {
  const std::int64_t n = expect_add(a, b, y);
  stream.run([=, this] {
    note_moved(a, b, y);
    with_loops(loops_, a.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
        loops.add(pointer<T>(a) + begin, pointer<T>(b) + begin, pointer<T>(y) + begin, end - begin);
      });
    });
  });
}

void CpuOps::cast(ConstTensor in, Tensor out, Stream& stream) {
  const std::int64_t n = in.numel();
  expect(out, "cast: out", out.dtype(), n);
  if (in.dtype() == out.dtype()) {
    stream.run([=, threads = threads_on(stream)] {
      note_moved(in, out);
      const std::int64_t size = size_of(in.dtype());
      parallel_pieces(threads, n * size, kPiece * size, [&](std::int64_t begin, std::int64_t end) {
        std::memmove(pointer<std::byte>(out) + begin, pointer<std::byte>(in) + begin,
                     static_cast<std::size_t>(end - begin));
      });
    });
    return;
  }
  expect_conversion(in, "cast: in", out, "cast: out");
  stream.run([=, this, threads = threads_on(stream)] {
    note_moved(in, out);
    with_loops(loops_, in.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
        const T* const from = pointer<T>(in) + begin;
        if (out.dtype() == DType::kF32) {
          loops.cast_to_f32(from, pointer<float>(out) + begin, end - begin);
        } else if (out.dtype() == DType::kBF16) {
          loops.cast_to_bf16(from, pointer<BF16>(out) + begin, end - begin);
        } else {
          loops.cast_to_f16(from, pointer<F16>(out) + begin, end - begin);
        }
      });
    });
  });
}

void CpuOps::add_scaled(ConstTensor x, float scale, Tensor y, Write write, Stream& stream) {
  expect_conversion(x, "add_scaled: x", y, "add_scaled: y");
  stream.run([=, this, threads = threads_on(stream)] {
    note_moved(x, y);
    scale_elements(threads, x, scale, y, write == Write::kAdd);
  });
}

void CpuOps::scale_elements(int threads, ConstTensor x, float scale, Tensor y, bool adds) {
  with_loops(loops_, x.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
    parallel_pieces(threads, x.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
      const T* const from = pointer<T>(x) + begin;
      if (y.dtype() == DType::kF32) {
        loops.scale_to_f32(from, scale, pointer<float>(y) + begin, adds, end - begin);
      } else if (y.dtype() == DType::kBF16) {
        loops.scale_to_bf16(from, scale, pointer<BF16>(y) + begin, adds, end - begin);
      } else {
        loops.scale_to_f16(from, scale, pointer<F16>(y) + begin, adds, end - begin);
      }
    });
  });
}

void CpuOps::zero(Tensor tensor, Stream& stream) {
  stream.run([=, this] {
    note_moved(tensor);
    zero_bytes(tensor.data(), tensor.bytes());
  });
}

void CpuOps::zero_bytes(void* data, std::int64_t bytes) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 20;
  // What is larger than the caches is written past them: reading the old lines first, as ordinary
  // stores do, would double the traffic.
  constexpr std::int64_t kLargerThanCaches = std::int64_t{16} << 20;
  const bool past_caches = bytes >= kLargerThanCaches;
  parallel_pieces(threads_, bytes, kBytes, [=](std::int64_t begin, std::int64_t end) {
    auto* const piece = static_cast<std::byte*>(data) + begin;
    if (past_caches) {
      stream_zeros(piece, end - begin);
    } else {
      std::memset(piece, 0, static_cast<std::size_t>(end - begin));
    }
  });
}

}  // namespace dstrain
