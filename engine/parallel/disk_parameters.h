// DiskParameters: parameters that lie on a disk, on their way to where a unit is gathered. A thread
// of its own reads this rank's slices in the order in which they are asked for, ahead of the stream
// that gathers them, into memory that takes a few at once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/parallel/data_parallel.h"
#include "engine/runtime/disk/disk_queue.h"

namespace dstrain {

class DiskParameters {
 public:
  /// What `parts` refers to outlives this.
  explicit DiskParameters(const DataParallelParts& parts);
  DiskParameters(const DiskParameters&) = delete;
  DiskParameters& operator=(const DiskParameters&) = delete;
  ~DiskParameters();

  /// Begins to read what this rank owns of the unit, once `updated` has passed, and enqueues on
  /// `stream` what waits for it and copies it to `place`, on the device. A failed read surfaces on
  /// the stream.
  void bring(int unit, const Event& updated, Tensor place, Stream& stream);

 private:
  struct Slot {
    std::byte* memory = nullptr;
    Event copied;  ///< what was read last has left
  };

  DataParallelParts parts_;
  DiskDevice& disk_;
  std::unique_ptr<DiskQueue> queue_;  // used by the reader alone
  std::unique_ptr<Stream> reader_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

}  // namespace dstrain
