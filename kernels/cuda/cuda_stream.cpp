#include "kernels/cuda/cuda_stream.h"

#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/stream_decorator.h"
#include "kernels/cuda/cuda_check.h"

namespace dstrain {

class CudaStream::Point {
 public:
  Point() {
    // Makes the host sleep while it waits for the event, which the device's flags do not do for
    // events.
    cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
               "cudaEventCreateWithFlags");
  }
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;
  ~Point() { (void)cudaEventDestroy(event_); }
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

struct CudaStream::Task {
  CudaStream* stream;
  std::function<void()> work;
};

CudaStream::CudaStream(int device, FaultBox& faults) : device_(device), faults_(faults) {
  cuda_check(cudaSetDevice(device_), "cudaSetDevice");
  // The stream is non-blocking: ordered by events alone, never by CUDA's default stream.
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
}

CudaStream::~CudaStream() {
  (void)cudaSetDevice(device_);
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
}

cudaStream_t CudaStream::use() {
  cuda_check(cudaSetDevice(device_), "cudaSetDevice");
  return stream_;
}

void CudaStream::refuse_while_recording(const char* what) const {
  check(!is_recording_, "{} on a stream that a graph is being recorded from", what);
}

void CudaStream::enqueue(std::function<void()> task) {
  refuse_while_recording("a task of the host");
  const cudaStream_t stream = use();
  {
    const std::lock_guard lock(mutex_);
    has_tasks_ = true;
  }
  auto owned = std::make_unique<Task>(Task{this, std::move(task)});
  const auto call = [](void* data) {
    const std::unique_ptr<Task> called(static_cast<Task*>(data));
    called->stream->run(called->work);
  };
  cuda_check(cudaLaunchHostFunc(stream, call, owned.get()), "cudaLaunchHostFunc");
  (void)owned.release();  // the call deletes it
}

void CudaStream::run(const std::function<void()>& task) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) {
      return;
    }
  }
  try {
    task();
  } catch (...) {  // a thread's entry point: the driver's
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

Event CudaStream::record() {
  refuse_while_recording("an event");
  const cudaStream_t stream = use();
  const std::lock_guard lock(mutex_);
  forget_passed();
  std::shared_ptr<Point> point;
  if (spare_.empty()) {
    point = std::make_shared<Point>();
  } else {
    point = std::move(spare_.back());
    spare_.pop_back();
  }
  cuda_check(cudaEventRecord(point->get(), stream), "cudaEventRecord");
  recorded_.push_back({++last_ticket_, std::move(point)});
  return {.stream = this, .ticket = last_ticket_};
}

/// Forgets points from the oldest on, as the GPU passes them in order. A point that a thread still
/// waits for is not reused.
void CudaStream::forget_passed() {
  while (!recorded_.empty()) {
    const cudaError_t status = cudaEventQuery(recorded_.front().point->get());
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();  // an answer, no error
      return;
    }
    cuda_check(status, "cudaEventQuery, or work before it,");
    if (recorded_.front().point.use_count() == 1) {
      spare_.push_back(std::move(recorded_.front().point));
    }
    recorded_.pop_front();
  }
}

std::shared_ptr<CudaStream::Point> CudaStream::find(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  check(ticket <= last_ticket_, "ticket {} of a CUDA stream that has given out {}", ticket,
        last_ticket_);
  if (recorded_.empty() || ticket < recorded_.front().ticket) {
    return nullptr;
  }
  return recorded_[static_cast<std::size_t>(ticket - recorded_.front().ticket)].point;
}

void CudaStream::wait(const Event& event) {
  if (event.stream == nullptr) {
    return;
  }
  refuse_while_recording("a wait for an event");
  auto* const other = dynamic_cast<CudaStream*>(&innermost(*event.stream));
  if (other == this) {
    return;
  }
  if (other == nullptr) {  // a thread's: the driver's thread waits for it, then the GPU continues
    enqueue([event] { event.stream->wait_until(event.ticket); });
    return;
  }
  if (const std::shared_ptr<Point> point = other->find(event.ticket); point != nullptr) {
    cuda_check(cudaStreamWaitEvent(use(), point->get(), 0), "cudaStreamWaitEvent");
  }
  bool may_fail = false;
  {
    const std::lock_guard lock(other->mutex_);
    may_fail = other->has_tasks_;
  }
  if (may_fail) {
    enqueue([other] { other->rethrow_task_failure(); });
  }
}

void CudaStream::wait_until(std::uint64_t ticket) {
  if (const std::shared_ptr<Point> point = find(ticket); point != nullptr) {
    (void)use();
    check_wait(cudaEventSynchronize(point->get()), "cudaEventSynchronize, or work before it,");
  }
  rethrow_failures();
}

void CudaStream::synchronize() {
  refuse_while_recording("a wait of the host");
  check_wait(cudaStreamSynchronize(use()), "cudaStreamSynchronize, or work before it,");
  rethrow_failures();
}

/// Where the device was given up, that is the cause, and the status a consequence.
void CudaStream::check_wait(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    if (const std::exception_ptr cause = faults_.failure(); cause != nullptr) {
      std::rethrow_exception(cause);
    }
    fail_cuda(status, call);
  }
}

void CudaStream::rethrow_failures() {
  faults_.rethrow();
  rethrow_task_failure();
}

void CudaStream::rethrow_task_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

}  // namespace dstrain
