// Scratch memory of the CPU operations: leased for one operation, kept for the next, so that a
// training step allocates nothing. Operations on two streams at once get different buffers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace dstrain {

class ScratchPool {
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  struct Buffer {
    std::unique_ptr<void, Free> data;
    std::int64_t bytes = 0;
  };

 public:
  /// A buffer of at least the bytes asked for, aligned to 64; back in the pool when destroyed.
  class Lease {
   public:
    Lease(ScratchPool& pool, Buffer buffer) : pool_(pool), buffer_(std::move(buffer)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(buffer_));  // has room: see lease()
    }
    template <typename T>
    [[nodiscard]] T* as() const {
      return static_cast<T*>(buffer_.data.get());
    }

   private:
    ScratchPool& pool_;
    Buffer buffer_;
  };

  [[nodiscard]] Lease lease(std::int64_t bytes) {
    Buffer buffer;
    {
      const std::lock_guard lock(mutex_);
      if (free_.empty()) {
        free_.reserve(static_cast<std::size_t>(++buffers_));
      } else {
        buffer = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (buffer.bytes < bytes) {
      const std::int64_t rounded = (bytes + 4095) / 4096 * 4096;
      buffer.data.reset();
      buffer.data.reset(std::aligned_alloc(4096, static_cast<std::size_t>(rounded)));
      buffer.bytes = buffer.data == nullptr ? 0 : rounded;
      if (buffer.data == nullptr) {
        const Lease put_back(*this, std::move(buffer));
        throw std::bad_alloc();
      }
    }
    return {*this, std::move(buffer)};
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer> free_;
  int buffers_ = 0;
};

}  // namespace dstrain
