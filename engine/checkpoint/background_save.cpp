#include "engine/checkpoint/background_save.h"

#include <exception>
#include <utility>

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/comm/block_signals.h"
#include "kernels/core/check.h"
#include "kernels/core/trace_range.h"

namespace dstrain {
namespace {

/// Where all cores compute, a save may take longer; a step should not.
void give_way_to_computation() {
  constexpr int kLessUrgent = 10;
  // On Linux this affects the calling thread alone. If it fails, the save is merely less polite.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLessUrgent);
}

}  // namespace

BackgroundSave::BackgroundSave(CheckpointStore& store, Communicator& group)
    : store_(store), group_(group) {}

BackgroundSave::~BackgroundSave() {
  if (!under_way()) {
    return;
  }
  try {
    collect();
  } catch (const std::exception& error) {
    spdlog::error("step {} could not be saved: {}", step_, error.what());
  }
}

void BackgroundSave::start(TrainingState state,
                           std::span<const CheckpointTensor> tensors,
                           std::int64_t keep) {
  check(!under_way(), "step {} is to be saved while step {} is being saved", state.step, step_);
  step_ = state.step;
  const BlockSignals block;  // they are for the thread that ends a step
  ended_ = std::async(std::launch::async, [this, state = std::move(state), tensors, keep,
                                           log = TraceLog::of_this_thread()] {
    give_way_to_computation();
    const TraceLog::Thread bound(log, "background save");
    const TraceRange range("save", state.step);
    store_.save(state, tensors, keep, group_);
  });
}

bool BackgroundSave::has_ended() const {
  return under_way() && ended_.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
}

void BackgroundSave::collect() {
  ended_.get();
}

}  // namespace dstrain
