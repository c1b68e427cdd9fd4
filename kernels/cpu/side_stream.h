// SideStream: a thread that runs tasks one after another, alongside the thread that computes.
//
// A task that throws breaks the stream: the tasks after it are dropped (they may rest on what it
// did not do), and every wait for it or for a later point rethrows its exception, here and on
// streams that wait for an event of this one. The destructor lets everything enqueued finish.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/core/device.h"

namespace dstrain {

class SideStream final : public Stream {
 public:
  /// The kernel keeps the first 15 characters of `name`.
  explicit SideStream(const std::string& name);
  ~SideStream() override;

  [[nodiscard]] bool is_inline() const override { return false; }
  void enqueue(std::function<void()> task) override;
  [[nodiscard]] Event record() override;
  void wait(const Event& event) override;
  void wait_until(std::uint64_t ticket) override;
  void synchronize() override;

 private:
  void run_tasks();

  const std::string_view wait_name_;  ///< "wait for communication", in traces
  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable work_done_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t enqueued_ = 0;   ///< ticket of the last task enqueued; the first has ticket 1
  std::uint64_t completed_ = 0;  ///< ticket of the last task that ran or was dropped
  std::uint64_t failed_ = 0;     ///< ticket of the task that threw; 0: none
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace dstrain
