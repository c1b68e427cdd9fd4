// Deadline: calls `expire` in a thread of its own if it is not destroyed before its time. It is
// meant for calls that block without a usable timeout of their own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/comm/block_signals.h"

namespace dstrain {

class Deadline {
 public:
  Deadline(std::chrono::steady_clock::time_point when, std::function<void()> expire) {
    const BlockSignals block;
    thread_ = std::jthread([this, when, expire = std::move(expire)] {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, when, [this] { return met_; })) {
        lock.unlock();
        expire();
      }
    });
  }
  ~Deadline() {
    const std::lock_guard lock(mutex_);
    met_ = true;
    changed_.notify_all();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool met_ = false;
  std::jthread thread_;  // last: it uses the others, and is joined first
};

}  // namespace dstrain
