#include "tests/emulated_cuda/emulated_stream.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/utsname.h>

#include "tests/emulated_cuda/emulated_memory.h"

namespace dstrain::emulated {
namespace {

struct Streams {
  std::mutex mutex;
  std::set<Stream*> all;
  std::map<int, Stream*> defaults;  // of a device; never destroyed
};

Streams& streams() {
  static Streams& all = *new Streams;
  return all;
}

/// "GPU-01000000-0000-…"
std::string uuid_text(int physical_device) {
  std::string text = "GPU-";
  const std::array<unsigned char, 16> uuid = uuid_of(physical_device);
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", uuid[i]);
    text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits.data());
  }
  return text;
}

/// By the machine's numbers.
std::vector<int> visible_devices() {
  const char* const asked_for = std::getenv("DSTRAIN_EMULATED_GPUS");
  const int count = asked_for == nullptr ? 1 : std::atoi(asked_for);
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  if (chosen == nullptr) return all;
  std::vector<int> visible;
  std::istringstream entries(chosen);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto is_meant = [&](int device) {
      return entry == std::to_string(device) ||
             (entry.starts_with("GPU-") && uuid_text(device).starts_with(entry));
    };
    const auto found = std::find_if(all.begin(), all.end(), is_meant);
    if (found == all.end()) break;
    visible.push_back(*found);
  }
  return visible;
}

}  // namespace

int num_devices() {
  return static_cast<int>(visible_devices().size());
}

int physical_device(int device) {
  return visible_devices().at(static_cast<std::size_t>(device));
}

std::array<unsigned char, 16> uuid_of(int physical_device) {
  utsname host{};
  uname(&host);
  const std::size_t hash = std::hash<std::string>()(host.nodename);
  std::array<unsigned char, 16> uuid{static_cast<unsigned char>(physical_device + 1)};
  std::memcpy(uuid.data() + 8, &hash, sizeof(hash));
  return uuid;
}

int compute_capability() {
  constexpr int kHopper = 90;
  const char* const chosen = std::getenv("DSTRAIN_EMULATED_CAPABILITY");
  return chosen == nullptr ? kHopper : std::atoi(chosen);
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

double& stream_microseconds() {
  thread_local double microseconds = 0.0;
  return microseconds;
}

Stream::Stream() : device_(current_device()), thread_([this] { work(); }) {
  const std::lock_guard lock(streams().mutex);
  streams().all.insert(this);
}

Stream::~Stream() {
  {
    const std::lock_guard lock(streams().mutex);
    streams().all.erase(this);
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

Stream*& recorded_stream() {
  thread_local Stream* stream = nullptr;
  return stream;
}

void Stream::begin_capture() {
  capture_ = std::make_shared<Graph>();
  is_broken_ = false;
  recorded_stream() = this;
}

std::shared_ptr<Stream::Graph> Stream::end_capture() {
  recorded_stream() = nullptr;
  std::shared_ptr<Graph> graph = std::move(capture_);
  return is_broken_ ? nullptr : graph;
}

Stream::Graph::~Graph() {
  for (void* const data : memory) {
    release(data);
  }
}

void* Stream::allocate_in_capture(std::size_t bytes) {
  void* const data = allocate(bytes, {.device = device_});
  capture_->memory.push_back(data);
  enqueue([data, bytes] { std::memset(data, 0xff, bytes); });
  return data;
}

void Stream::enqueue_host(std::function<void()> work) {
  if (is_capturing()) {
    capture_->work.push_back(std::move(work));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Stream::enqueue(std::function<void()> work) {
  enqueue_host([work = std::move(work)] {
    const DeviceAccess access;
    work();
  });
}

std::shared_ptr<Point> Stream::record() {
  auto point = std::make_shared<Point>();
  enqueue_host([point] { point->pass(); });
  return point;
}

void Stream::work() {
  current_device() = device_;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    {
      const std::function<void()> next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      next();
    }
    lock.lock();
  }
}

Stream& stream_of(cudaStream_t handle) {
  if (handle != nullptr) {
    return *reinterpret_cast<Stream*>(handle);
  }
  static std::mutex mutex;  // a stream that is made asks for the other one
  const std::lock_guard lock(mutex);
  Stream*& found = streams().defaults[current_device()];
  if (found == nullptr) {
    found = new Stream;
  }
  return *found;
}

void synchronize_device(int device) {
  std::vector<std::shared_ptr<Point>> points;
  {
    const std::lock_guard lock(streams().mutex);
    for (Stream* const stream : streams().all) {
      if (stream->device() == device) points.push_back(stream->record());
    }
  }
  for (const auto& point : points) {
    point->wait();
  }
}

}  // namespace dstrain::emulated
