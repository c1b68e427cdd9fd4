// GraphReplay: records stretches of work on a device that come back with the same operands, and
// from then on enqueues each as a whole (a CUDA graph). It saves the host's time of enqueueing the
// parts one by one, which counts where the device would otherwise wait: small models, small
// batches.
#pragma once

#include <compare>
#include <cstdint>

#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace dstrain {

/// The facts that decide the operands of a stretch of work: the same key means the same operations
/// on the same memory with the same numbers.
struct GraphKey {
  const void* layer = nullptr;  ///< whose work it is
  int slot = 0;                 ///< of a layer's buffers
  Pass pass = Pass::kForward;
  const void* parameters = nullptr;
  const void* frozen = nullptr;  ///< parameters that are not trained
  const void* gradients = nullptr;
  Write write = Write::kOverwrite;  ///< of the gradients
  friend auto operator<=>(const GraphKey&, const GraphKey&) = default;
};

class GraphReplay {
 public:
  GraphReplay() = default;
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;
  virtual ~GraphReplay() = default;

  /// Enqueues `work` on `stream`, which it must enqueue on alone and must not wait for. It is
  /// called the first time, when algorithms are still chosen, and the second, when it is recorded,
  /// but not after that.
  template <typename Work>
  void run(const GraphKey& key, Stream& stream, Work&& work) {
    switch (begin(key, stream)) {
      case Begun::kReplayed:
        return;
      case Begun::kPlain:
        work();
        return;
      case Begun::kRecording:
        break;
    }
    try {
      work();
    } catch (...) {
      abandon(stream);
      throw;
    }
    end(key, stream);
  }

 protected:
  enum class Begun : std::uint8_t { kReplayed, kPlain, kRecording };
  virtual Begun begin(const GraphKey& key, Stream& stream) = 0;
  /// Keeps and enqueues what was recorded since begin().
  virtual void end(const GraphKey& key, Stream& stream) = 0;
  virtual void abandon(Stream& stream) noexcept = 0;
};

}  // namespace dstrain
