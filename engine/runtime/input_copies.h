// InputCopies: takes what blocks keep of their inputs to the host's memory as forward goes on, and
// brings it back before backward computes those blocks again, on streams of its own. Two places on
// the device serve all blocks in turn:
//
//   forward    compute   F0 F1 F2 F3 …         a block leaves its input in one place, and goes on;
//              leaving      0→ 1→ 2→ 3→        the block after the next waits until it has left
//   backward   compute   B3 B2 B1 B0           the last two inputs are still in their places;
//              coming       →1 →0              the next one's comes while a block computes
//
// Where several micro-batches go through a block before the next, each of them counts as a block
// here, and backward begins with the first, whose input has left.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "kernels/core/device.h"
#include "kernels/core/tensor.h"

namespace dstrain {

class InputCopies {
 public:
  explicit InputCopies(Device& device);

  /// Names what one block keeps of one micro-batch, and where.
  struct Kept {
    int buffer = -1;  ///< of the blueprint
    int slot = 0;
    Tensor host;  ///< in the host's memory
  };
  /// The two on the device, as large as what is kept; the same in all calls.
  using Places = std::array<Tensor, 2>;

  /// Takes `input`, which compute has made and may overwrite afterwards, to the host.
  void take(const Kept& kept, ConstTensor input, const Places& places, Stream& compute);
  /// Returns where compute, from here on, finds what was taken: until the second later call.
  ConstTensor bring(const Kept& kept, const Places& places, Stream& compute);
  /// Starts to bring what a later bring() will ask for, unless it is there. It takes the place that
  /// was asked for longer ago: told of what comes next and then of what comes after it, it keeps
  /// both.
  void bring_soon(const Kept& kept, const Places& places, Stream& compute);

  void synchronize();

 private:
  struct Place {
    int buffer = -1;  // what it holds, -1: nothing
    int slot = 0;
    Event arrived{};  // of what it holds
    Event busy{};     // after the last copy from or to it beside compute
  };
  [[nodiscard]] std::optional<std::size_t> find(const Kept& kept) const;
  std::size_t next() { return last_ = 1 - last_; }

  Device& device_;
  std::unique_ptr<Stream> leaving_;
  std::unique_ptr<Stream> coming_;
  std::array<Place, 2> places_{};
  std::size_t last_ = 0;  // used last
};

}  // namespace dstrain
