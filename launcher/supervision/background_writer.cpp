#include "launcher/supervision/background_writer.h"

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

namespace dstrain::launcher {

struct BackgroundWriter::State {
  struct File {
    FileDescriptor owned;  // empty if borrowed
    int fd = -1;
    int error = 0;
  };
  struct Chunk {
    size_t file;
    std::string bytes;
  };
  explicit State(size_t capacity) : capacity_bytes(capacity) {}

  const size_t capacity_bytes;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<File> files;
  std::vector<Chunk> waiting;
  size_t waiting_bytes = 0;  // in `waiting`, and in what the thread is writing
  bool closing = false;
};

namespace {

/// errno, or 0 when all is written.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // somebody else made the terminal non-blocking
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

BackgroundWriter::BackgroundWriter(size_t capacity_bytes)
    : state_(std::make_shared<State>(capacity_bytes)) {
  // Signals are for the thread that runs the event loop: a new thread inherits this mask.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([state = state_] { run(*state); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BackgroundWriter::~BackgroundWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->closing = true;
  state_->changed.notify_all();
}

void BackgroundWriter::run(State& state) {
  std::unique_lock lock(state.mutex);
  std::vector<State::Chunk> chunks;
  while (true) {
    state.changed.wait(lock, [&] { return state.closing || !state.waiting.empty(); });
    if (state.waiting.empty()) return;
    chunks.swap(state.waiting);
    for (const State::Chunk& chunk : chunks) {
      State::File& file = state.files[chunk.file];
      const int fd = file.fd;
      int error = file.error;
      if (error == 0) {
        lock.unlock();
        error = write_all(fd, chunk.bytes);
        lock.lock();
      }
      state.files[chunk.file].error = error;
      state.waiting_bytes -= chunk.bytes.size();
    }
    chunks.clear();
    state.changed.notify_all();
  }
}

size_t BackgroundWriter::add(FileDescriptor file) {
  const std::lock_guard lock(state_->mutex);
  const int fd = file.get();
  state_->files.push_back({std::move(file), fd, 0});
  return state_->files.size() - 1;
}

size_t BackgroundWriter::add_borrowed(int fd) {
  const std::lock_guard lock(state_->mutex);
  state_->files.push_back({FileDescriptor(), fd, 0});
  return state_->files.size() - 1;
}

bool BackgroundWriter::write(size_t file, std::string bytes) {
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting_bytes + bytes.size() > state_->capacity_bytes) return false;
  state_->waiting_bytes += bytes.size();
  state_->waiting.push_back({file, std::move(bytes)});
  state_->changed.notify_all();
  return true;
}

bool BackgroundWriter::idle() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting_bytes == 0;
}

int BackgroundWriter::error(size_t file) const {
  const std::lock_guard lock(state_->mutex);
  return state_->files[file].error;
}

bool BackgroundWriter::finish(std::chrono::milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, patience, [&] { return state_->waiting_bytes == 0; });
}

}  // namespace dstrain::launcher
