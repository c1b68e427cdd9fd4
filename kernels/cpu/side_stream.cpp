#include "kernels/cpu/side_stream.h"

#include <utility>

#include <pthread.h>

namespace dstrain {
namespace {

/// How a wait for a stream is called in the trace of the thread that makes it.
std::string_view name_of_wait(const std::string& stream) {
  TraceLog* const log = TraceLog::of_this_thread();
  return log == nullptr ? std::string_view{} : log->keep("wait for " + stream);
}

}  // namespace

SideStream::SideStream(const std::string& name)
    : wait_name_(name_of_wait(name)), thread_([this, name, log = TraceLog::of_this_thread()] {
        const TraceLog::Thread bound(log, name);
        run_tasks();
      }) {
  // The name is only for people to read; a failure to set it is no reason to stop.
  (void)pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

SideStream::~SideStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_arrived_.notify_one();
  thread_.join();
}

void SideStream::enqueue(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    ++enqueued_;
  }
  work_arrived_.notify_one();
}

Event SideStream::record() {
  const std::lock_guard lock(mutex_);
  return {.stream = this, .ticket = enqueued_};
}

void SideStream::wait(const Event& event) {
  if (event.stream == nullptr || event.stream == this) {
    return;  // passed already, or ordered by the queue itself
  }
  enqueue([event] { event.stream->wait_until(event.ticket); });
}

void SideStream::wait_until(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  if (completed_ < ticket) {
    const TraceSpan span(TraceKind::kWait, wait_name_);
    work_done_.wait(lock, [&] { return completed_ >= ticket; });
  }
  if (failure_ != nullptr && ticket >= failed_) {
    std::rethrow_exception(failure_);
  }
}

void SideStream::synchronize() {
  wait_until(record().ticket);
}

void SideStream::run_tasks() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_arrived_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) {
      return;
    }
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    if (failure_ == nullptr) {
      std::exception_ptr failure;
      lock.unlock();
      try {
        task();
      } catch (...) {  // rethrown where it is waited for
        failure = std::current_exception();
      }
      task = nullptr;  // its captures are destroyed before it is reported as done
      lock.lock();
      if (failure != nullptr) {
        failure_ = failure;
        failed_ = completed_ + 1;
      }
    }
    ++completed_;
    work_done_.notify_all();
  }
}

}  // namespace dstrain
