#include "engine/comm/wait_clock.h"

#include <utility>

namespace dstrain {

double WaitClock::take_seconds() {
  return std::chrono::duration<double>(std::exchange(waited_, {})).count();
}

int WaitClock::add_group(const std::string& name) {
  return next_ == nullptr ? 0 : next_->add_group(name);
}

void WaitClock::begin_collective(int group, Op op, Purpose purpose) noexcept {
  if (computes()) enter();
  if (next_ != nullptr) next_->begin_collective(group, op, purpose);
}

void WaitClock::end_collective(int group) noexcept {
  if (next_ != nullptr) next_->end_collective(group);
  if (computes()) leave();
}

void WaitClock::begin_wait() noexcept {
  if (computes()) enter();
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

void WaitClock::enter() noexcept {
  if (waits_++ == 0) began_ = Clock::now();
}

void WaitClock::leave() noexcept {
  if (--waits_ == 0) waited_ += Clock::now() - began_;
}

}  // namespace dstrain
