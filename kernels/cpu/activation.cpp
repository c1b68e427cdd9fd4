// Activations of the feed-forward layer, plain and gated.
//
// N tokens, F feed-forward width
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/elementwise_operands.h"

namespace dstrain {
namespace {

/// Elements that one task takes: a few tens of microseconds of work, a whole number of pages.
constexpr std::int64_t kPiece = 1 << 14;
constexpr std::int64_t kRows = 8;

}  // namespace

void CpuOps::activation_forward(ActivationKind kind,
                                ConstTensor x_NF,
                                Tensor y_NF,
                                Stream& stream) {
  const std::int64_t n = expect_activation(x_NF, y_NF);
  stream.run([=, this] {
    note_moved(x_NF, y_NF);
    with_loops(loops_, x_NF.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
        loops.activation_forward(kind, pointer<T>(x_NF) + begin, pointer<T>(y_NF) + begin,
                                 end - begin);
      });
    });
  });
}

void CpuOps::activation_backward(
    ActivationKind kind, ConstTensor x_NF, ConstTensor dy_NF, Tensor dx_NF, Stream& stream) {
  const std::int64_t n = expect_activation_backward(x_NF, dy_NF, dx_NF);
  stream.run([=, this] {
    note_moved(x_NF, dy_NF, dx_NF);
    with_loops(loops_, x_NF.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
        loops.activation_backward(kind, pointer<T>(x_NF) + begin, pointer<T>(dy_NF) + begin,
                                  pointer<T>(dx_NF) + begin, end - begin);
      });
    });
  });
}

void CpuOps::gated_activation_forward(GatedActivation activation,
                                      ConstTensor gate_up,
                                      Tensor y_NF,
                                      Stream& stream) {
  const auto [tokens, width] = expect_gated(gate_up, gate_up, y_NF);
  stream.run([=, this, tokens = tokens, width = width] {
    note_moved(gate_up, y_NF);
    with_loops(loops_, y_NF.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, tokens, kRows, [&](std::int64_t begin, std::int64_t end) {
        loops.gated_forward(activation, pointer<T>(gate_up) + begin * 2 * width,
                            pointer<T>(y_NF) + begin * width, end - begin, width);
      });
    });
  });
}

void CpuOps::gated_activation_backward(GatedActivation activation,
                                       ConstTensor gate_up,
                                       ConstTensor dy_NF,
                                       Tensor d_gate_up,
                                       Stream& stream) {
  const auto [tokens, width] = expect_gated(gate_up, d_gate_up, dy_NF);
  stream.run([=, this, tokens = tokens, width = width] {
    note_moved(gate_up, dy_NF, d_gate_up);
    with_loops(loops_, dy_NF.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, tokens, kRows, [&](std::int64_t begin, std::int64_t end) {
        loops.gated_backward(activation, pointer<T>(gate_up) + begin * 2 * width,
                             pointer<T>(dy_NF) + begin * width,
                             pointer<T>(d_gate_up) + begin * 2 * width, end - begin, width);
      });
    });
  });
}

}  // namespace dstrain
