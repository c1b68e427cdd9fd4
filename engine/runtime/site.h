// Site: runs work on the tensors of one space: its operations, the memory's device and the stream
// that keeps the order. A bundle of references; owns nothing.
#pragma once

#include "engine/runtime/arena.h"
#include "engine/runtime/disk/disk_device.h"
#include "kernels/core/caller_stream.h"
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace dstrain {

struct Site {
  Ops& ops;  ///< of the host for what lies on a disk, once it is in memory
  Device& device;
  Stream& stream;
  const Arena& arena;

  /// Where the space is a disk; else nullptr.
  DiskDevice* disk = nullptr;

  /// Calls visit(part, first, stream) for parts of a tensor that operations on that stream reach,
  /// each with the index of its first element: for the tensor itself, except where it is on a disk.
  template <typename Visit>
  void visit_parts(ConstTensor tensor, Visit&& visit) const {
    if (disk == nullptr) {
      visit(tensor, std::int64_t{0}, stream);
      return;
    }
    CallerStream here;
    disk->visit_parts(tensor,
                      [&](ConstTensor part, std::int64_t first) { visit(part, first, here); });
  }

  [[nodiscard]] Tensor buffer(BufferRef ref) const { return arena.buffer(ref); }
};

}  // namespace dstrain
