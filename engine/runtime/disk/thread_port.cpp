// The way to the disk by threads that block in pread and pwrite, one block each.
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "engine/runtime/disk/disk_queue.h"

namespace dstrain {
namespace {

class ThreadPort final : public DiskPort {
 public:
  ThreadPort(int descriptor, int depth) : descriptor_(descriptor) {
    constexpr int kMost = 16;
    for (int i = 0; i < std::min(depth, kMost); ++i) {
      threads_.emplace_back([this] { work(); });
    }
  }
  ~ThreadPort() override {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    arrived_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void submit(const DiskBlock& block, int index) override {
    const std::lock_guard lock(mutex_);
    blocks_.emplace_back(block, index);
  }
  void flush() override { arrived_.notify_all(); }

  Result take() override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !results_.empty(); });
    const Result result = results_.front();
    results_.pop_front();
    return result;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      arrived_.wait(lock, [this] { return is_ending_ || !blocks_.empty(); });
      if (blocks_.empty()) {
        return;
      }
      const auto [block, index] = blocks_.front();
      blocks_.pop_front();
      lock.unlock();
      const auto size = static_cast<std::size_t>(block.bytes);
      const ssize_t count = block.writes ? ::pwrite(descriptor_, block.memory, size, block.offset)
                                         : ::pread(descriptor_, block.memory, size, block.offset);
      const Result result{
          .index = index, .bytes = count > 0 ? count : 0, .error = count < 0 ? errno : 0};
      lock.lock();
      results_.push_back(result);
      done_.notify_one();
    }
  }

  int descriptor_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable done_;
  std::deque<std::pair<DiskBlock, int>> blocks_;
  std::deque<Result> results_;
  bool is_ending_ = false;
  std::vector<std::thread> threads_;  // last: they use everything above
};

}  // namespace

std::unique_ptr<DiskPort> make_thread_port(int descriptor, int depth) {
  return std::make_unique<ThreadPort>(descriptor, depth);
}

}  // namespace dstrain
