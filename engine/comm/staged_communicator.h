// StagedCommunicator: a Communicator for tensors on a device, by way of one for host memory. It
// serves where ranks share a GPU, and needs nothing but the host's network. Sums are those of the
// host's communicator, bit for bit.
//
// Every call is done when it returns: what the stream holds before it is waited for, copied to
// pinned memory, sent by the caller's thread, and copied back. That cannot deadlock as long as the
// same calls in the caller's thread cannot, one after the other, which is how a CPU without
// overlap_comm runs them:
//   ranks of one stage  run the same program, so they come to the collectives they share (tensor,
//                       data, shared heads; ZeRO-3's gathers ahead of their use too, whose places
//                       the gather plan fixes) in one order
//   stages              meet in exchanges alone, whose order the schedule's validation has proved
//   to
//                       come to its end with every exchange waiting for its partner, and in the
//                       sums of a step's end, which all of them come to in one order
// Calls of one rank come from one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/comm/communicator.h"

namespace dstrain {

/// A rank's pinned memory for what is on its way, shared by its staged communicators.
class StagingMemory {
 public:
  /// The bytes of one piece of a collective, or of up to four messages of an exchange: large enough
  /// to keep PCIe busy.
  static constexpr std::int64_t kChunkBytes = std::int64_t{16} << 20;

  /// `device` must outlive it. `chunk_bytes` is the same on all ranks: messages are cut by it.
  explicit StagingMemory(Device& device, std::int64_t chunk_bytes = kChunkBytes)
      : device_(device), chunk_bytes_(chunk_bytes) {}
  [[nodiscard]] Device& device() const { return device_; }
  [[nodiscard]] std::int64_t chunk_bytes() const { return chunk_bytes_; }
  /// The most bytes of one message of an exchange at a time.
  [[nodiscard]] std::int64_t piece_bytes() const { return chunk_bytes_ / 4; }
  /// Returns at least `bytes` bytes, valid until the next call. Throws OutOfMemory.
  std::byte* take(std::int64_t bytes);

 private:
  Device& device_;
  const std::int64_t chunk_bytes_;
  DeviceMemory memory_;
};

/// `staging` is shared by the rank's communicators and whoever makes them.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host,
                                                       std::shared_ptr<StagingMemory> staging);

}  // namespace dstrain
