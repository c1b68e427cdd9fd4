#include "engine/comm/wait_clock.h"

#include <algorithm>

namespace dstrain {

std::span<const double> WaitClock::take_seconds() {
  std::copy(waited_.begin(), waited_.end(), taken_.begin());
  std::fill(waited_.begin(), waited_.end(), 0.0);
  return taken_;
}

WaitClock::SlowPeer WaitClock::take_slow_peer() {
  SlowPeer slowest;
  for (std::size_t rank = 0; rank < for_bytes_.size(); ++rank) {
    const double seconds = for_bytes_[rank].exchange(0.0, std::memory_order_relaxed);
    if (seconds > slowest.seconds) slowest = {static_cast<int>(rank), seconds};
  }
  return slowest;
}

void WaitClock::add_transfer_wait(int world_rank, double seconds) noexcept {
  const auto rank = static_cast<std::size_t>(world_rank);
  if (rank < for_bytes_.size()) for_bytes_[rank].fetch_add(seconds, std::memory_order_relaxed);
  if (next_ != nullptr) next_->add_transfer_wait(world_rank, seconds);
}

int WaitClock::add_group(const std::string& name) {
  names_.push_back(name);
  next_numbers_.push_back(next_ == nullptr ? 0 : next_->add_group(name));
  waited_.push_back(0.0);
  taken_.push_back(0.0);
  return static_cast<int>(names_.size()) - 1;
}

void WaitClock::begin_collective(int group, Op op, Purpose purpose) noexcept {
  if (computes()) {
    enter(group);
  } else {
    beside_group_.store(group, std::memory_order_relaxed);
  }
  if (next_ != nullptr) {
    next_->begin_collective(next_numbers_[static_cast<std::size_t>(group)], op, purpose);
  }
}

void WaitClock::end_collective(int group) noexcept {
  if (next_ != nullptr) next_->end_collective(next_numbers_[static_cast<std::size_t>(group)]);
  if (computes()) leave();
}

void WaitClock::begin_wait() noexcept {
  if (computes()) enter(-1);
  if (next_ != nullptr) next_->begin_wait();
}

void WaitClock::end_wait() noexcept {
  if (next_ != nullptr) next_->end_wait();
  if (computes()) leave();
}

void WaitClock::begin_phase(RunPhase phase) noexcept {
  if (next_ != nullptr) next_->begin_phase(phase);
}

void WaitClock::finish_step(std::int64_t step) noexcept {
  if (next_ != nullptr) next_->finish_step(step);
}

void WaitClock::set_comparable(int number) noexcept {
  if (next_ != nullptr) next_->set_comparable(number);
}

void WaitClock::enter(int group) noexcept {
  if (waits_++ > 0) {
    if (group_ < 0) group_ = group;  // carried by this thread, within a wait
    return;
  }
  group_ = group;
  began_ = Clock::now();
}

void WaitClock::leave() noexcept {
  if (--waits_ > 0) return;
  const int group = group_ >= 0 ? group_ : beside_group_.load(std::memory_order_relaxed);
  const std::size_t at = group < 0 ? names_.size() : static_cast<std::size_t>(group);
  waited_[at] += std::chrono::duration<double>(Clock::now() - began_).count();
}

}  // namespace dstrain
