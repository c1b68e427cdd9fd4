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
  const auto add = [&](const StatePart& part) {
    bytes += place_of_bytes(part.piece.flat.size() * size_of(part.dtype));
  };
  for_each_state_part(plan, StateExtent::kMySlice, OwnStates::all(plan), add);
  return bytes;
}

StateSnapshot::StateSnapshot(Engine& engine)
    : engine_(engine),
      memory_(engine.device().allocate_host(snapshot_bytes(engine.plan()),
                                            "the copy that checkpoints are written from")) {}

std::span<const CheckpointTensor> StateSnapshot::take(std::int64_t updates) {
  Stream& compute = engine_.context().compute;
  copies_ =
      state_tensors(engine_, StateExtent::kMySlice, OwnStates::after(engine_.plan(), updates));
  std::int64_t used = 0;
  for (CheckpointTensor& copy : copies_) {
    const Tensor from = copy.data;
    copy.data = {static_cast<std::byte*>(memory_.data()) + used, from.dtype(), from.shape()};
    used += place_of_bytes(from.bytes());
    check(used <= memory_.bytes(), "a snapshot of at least {} bytes, {} are planned", used,
          memory_.bytes());
    if (copy.device != nullptr) {
      engine_.device().copy_to_host(from, copy.data.data(), compute);
    } else {
      std::memcpy(copy.data.data(), from.data(), static_cast<std::size_t>(from.bytes()));
    }
    copy.device = nullptr;
  }
  compute.synchronize();
  return copies_;
}

}  // namespace dstrain
