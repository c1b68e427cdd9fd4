// Streams and events of the emulated GPUs. A stream is a thread that does its work in order, after
// the call that enqueued it has returned or while it still runs: so a missing wait between two
// streams, or of the host for one, is what it is on a GPU, a race that reads NaN or old numbers.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

namespace dstrain::emulated {

/// Number of GPUs that this process sees: of DSTRAIN_EMULATED_GPUS, or 1, those that
/// CUDA_VISIBLE_DEVICES names by number or UUID, in its order and up to the first that does not
/// exist.
int num_devices();
/// The machine's number of the GPU that this process calls `device`.
int physical_device(int device);
/// The UUID of a GPU by the machine's number; it differs on every host.
std::array<unsigned char, 16> uuid_of(int physical_device);
/// The capability of every GPU: DSTRAIN_EMULATED_CAPABILITY, or 90 for 9.0.
int compute_capability();
/// The thread's current device, which cudaSetDevice chooses.
int& current_device();

/// The clock of the stream that this thread is: the time that its work would take on a GPU. It is
/// not measured; the emulation of each kind of work adds to it.
double& stream_microseconds();

/// A place in a stream's order.
class Point {
 public:
  [[nodiscard]] bool has_passed() const { return passed_; }
  /// The time at which it was passed, on the stream's clock.
  [[nodiscard]] double microseconds() const { return microseconds_; }
  void pass() {
    microseconds_ = stream_microseconds();
    passed_ = true;
    passed_.notify_all();
  }
  void wait() const { passed_.wait(false); }

 private:
  std::atomic<bool> passed_ = false;
  double microseconds_ = 0.0;
};

class Stream {
 public:
  /// Creates a stream on the current device.
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Waits until all work is done.
  ~Stream();

  [[nodiscard]] int device() const { return device_; }
  /// Enqueues work of the host, which must not touch a GPU's memory.
  void enqueue_host(std::function<void()> work);
  /// Enqueues work of the GPU.
  void enqueue(std::function<void()> work);
  /// From now on work is kept for a graph, not done; the host waits for nothing meanwhile. The
  /// calling thread records the graph, which recorded_stream() shows.
  void begin_capture();
  [[nodiscard]] bool is_capturing() const { return capture_ != nullptr; }
  /// What a graph does each time, and what it holds until it is destroyed.
  struct Graph {
    std::vector<std::function<void()>> work;
    std::vector<void*> memory;
    Graph() = default;
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    ~Graph();
  };
  /// Returns nullptr if the capture was broken off.
  std::shared_ptr<Graph> end_capture();
  /// Discards what was recorded; the end of the capture reports it.
  void break_capture() { is_broken_ = true; }
  /// Memory that a graph takes while it runs, filled with NaN each time.
  void* allocate_in_capture(std::size_t bytes);

  /// The point is shared by the stream and those who wait for it.
  std::shared_ptr<Point> record();
  void synchronize() { record()->wait(); }

 private:
  void work();

  int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ending_ = false;
  std::shared_ptr<Graph> capture_;  // of the thread that enqueues, as is_broken_
  bool is_broken_ = false;
  std::thread thread_;
};

/// The stream that this thread records a graph from; nullptr: none.
Stream*& recorded_stream();

/// nullptr is the current device's default stream; ours are all of the kind that does not wait for
/// it.
Stream& stream_of(cudaStream_t handle);
/// Waits for every stream of the device, as cudaFree and cudaDeviceSynchronize do.
void synchronize_device(int device);

/// The content of a cudaEvent_t.
struct Event {
  std::shared_ptr<Point> last;  ///< recorded; nullptr: never
  bool is_waited_for_asleep = false;
  bool is_of_graph = false;  ///< recorded while a graph was: nobody can ask for it
};

}  // namespace dstrain::emulated
