// Floats coded by their signs (kernels/math/sign_code.h). A task is a piece of the tensor.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/sign_code_operands.h"

namespace dstrain {
namespace {

constexpr std::int64_t kPiece = 1 << 14;  // a multiple of 8: whole bytes of signs

/// Calls body(begin, size, message, byte) for neighbours of one message each, all of n: the byte of
/// the message has the first one's sign.
template <typename Body>
void for_each_part(int threads, const SignParts& parts, std::int64_t n, Body&& body) {
  parallel_pieces(threads, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t message = begin / parts.chunk;
      const std::int64_t first = message * parts.chunk;
      const std::int64_t stop = std::min(end, first + parts.chunk);
      body(begin, stop - begin, message, parts.signs + (begin - first) / 8);
      begin = stop;
    }
  });
}

}  // namespace

void CpuOps::encode_signs(
    const SignParts& parts, Tensor values, ConstTensor squares, Tensor coded, Stream& stream) {
  const std::int64_t n = expect_sign_chunks(parts, values, coded);
  expect(squares, "sign code: squares", DType::kF64, 1);
  stream.run([=, this, threads = threads_on(stream)] {
    const float scale = sign_scale(*pointer<double>(squares), n);
    auto* const bytes = pointer<std::uint8_t>(coded);
    for_each_part(
        threads, parts, n,
        [&](std::int64_t begin, std::int64_t size, std::int64_t message, std::int64_t byte) {
          loops_.encode_signs(pointer<float>(values) + begin, scale,
                              bytes + message * parts.stride + byte, size);
        });
    const std::int64_t room = parts.sign_bytes();
    for (std::int64_t index = 0; index < parts.count; ++index) {
      std::uint8_t* const message = bytes + index * parts.stride;
      std::memcpy(message + parts.scale, &scale, sizeof scale);
      const std::int64_t used = (parts.elements_of(index, n) + 7) / 8;
      std::fill(message + parts.signs + used, message + parts.signs + room, std::uint8_t{0});
    }
  });
}

void CpuOps::sum_signs(const SignParts& parts,
                       ConstTensor coded,
                       float factor,
                       Tensor values,
                       Write write,
                       Stream& stream) {
  const std::int64_t n = expect_sign_sum(parts, coded, values);
  stream.run([=, this, threads = threads_on(stream)] {
    const auto* const bytes = pointer<std::uint8_t>(coded);
    parallel_pieces(threads, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      loops_.sum_signs({.count = parts.count,
                        .stride = parts.stride,
                        .signs = bytes + parts.signs + begin / 8,
                        .scales = bytes + parts.scale,
                        .factor = factor,
                        .adds = write == Write::kAdd,
                        .n = end - begin,
                        .y = pointer<float>(values) + begin});
    });
  });
}

void CpuOps::decode_signs(const SignParts& parts,
                          ConstTensor coded,
                          Tensor values,
                          Stream& stream) {
  const std::int64_t n = expect_sign_chunks(parts, values, coded);
  stream.run([=, this, threads = threads_on(stream)] {
    for_each_part(
        threads, parts, n,
        [&](std::int64_t begin, std::int64_t size, std::int64_t index, std::int64_t byte) {
          const std::uint8_t* const message = pointer<std::uint8_t>(coded) + index * parts.stride;
          loops_.sum_signs({.count = 1,
                            .stride = 0,
                            .signs = message + byte,
                            .scales = message + parts.scale,
                            .factor = 1.0F,
                            .adds = false,
                            .n = size,
                            .y = pointer<float>(values) + begin});
        });
  });
}

}  // namespace dstrain
