#include "engine/train/state_snapshot.h"

#include <cstring>

#include "engine/train/training_state.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;  // a cache line: no two copies share one

std::int64_t place_of_bytes(std::int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

std::int64_t snapshot_bytes(const RunPlan& plan) {
  std::int64_t bytes = 0;
  for_each_state_part(plan, StateExtent::kMySlice, [&](const StatePart& part) {
    bytes += place_of_bytes(part.piece.flat.size() * size_of(part.dtype));
  });
  return bytes;
}

StateSnapshot::StateSnapshot(Engine& engine)
    : engine_(engine),
      memory_(engine.device().allocate_host(snapshot_bytes(engine.plan()),
                                            "the copy that checkpoints are written from")),
      from_(state_tensors(engine, StateExtent::kMySlice)) {
  auto* next = static_cast<std::byte*>(memory_.data());
  for (const CheckpointTensor& from : from_) {
    to_.push_back(from);
    to_.back().data = {next, from.data.dtype(), from.data.shape()};
    to_.back().device = nullptr;
    next += place_of_bytes(from.data.bytes());
  }
  check(next == static_cast<std::byte*>(memory_.data()) + memory_.bytes(),
        "a snapshot of {} bytes, {} are planned", next - static_cast<std::byte*>(memory_.data()),
        memory_.bytes());
}

std::span<const CheckpointTensor> StateSnapshot::take() {
  Stream& compute = engine_.context().compute;
  for (std::size_t i = 0; i < from_.size(); ++i) {
    if (from_[i].device != nullptr) {
      engine_.device().copy_to_host(from_[i].data, to_[i].data.data(), compute);
    } else {
      std::memcpy(to_[i].data.data(), from_[i].data.data(),
                  static_cast<std::size_t>(from_[i].data.bytes()));
    }
  }
  compute.synchronize();
  return to_;
}

}  // namespace dstrain
