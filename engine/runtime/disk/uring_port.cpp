// The way to the disk by io_uring: the kernel takes blocks and returns results in two rings that it
// shares with the process, one system call for a series of them.
#include <cerrno>
#include <cstring>

#include <liburing.h>

#include "engine/runtime/disk/disk_queue.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

class UringPort final : public DiskPort {
 public:
  UringPort(const io_uring& ring, int descriptor) : ring_(ring), descriptor_(descriptor) {}
  ~UringPort() override { io_uring_queue_exit(&ring_); }

  void submit(const DiskBlock& block, int index) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    check(entry != nullptr, "more blocks than the ring has places");
    const auto bytes = static_cast<unsigned>(block.bytes);
    const auto offset = static_cast<std::uint64_t>(block.offset);
    if (block.writes) {
      io_uring_prep_write(entry, descriptor_, block.memory, bytes, offset);
    } else {
      io_uring_prep_read(entry, descriptor_, block.memory, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, static_cast<std::uint64_t>(index));
  }

  void flush() override {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int submitted = io_uring_submit(&ring_);
      check(submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY,
            "io_uring_submit: {}", std::strerror(-submitted));
    }
  }

  Result take() override {
    io_uring_cqe* entry = nullptr;
    int status = 0;
    do {
      status = io_uring_wait_cqe(&ring_, &entry);
    } while (status == -EINTR);
    check(status == 0, "io_uring_wait_cqe: {}", std::strerror(-status));
    const Result result{.index = static_cast<int>(io_uring_cqe_get_data64(entry)),
                        .bytes = entry->res > 0 ? entry->res : 0,
                        .error = entry->res < 0 ? -entry->res : 0};
    io_uring_cqe_seen(&ring_, entry);
    return result;
  }

 private:
  io_uring ring_;
  int descriptor_;
};

}  // namespace

std::unique_ptr<DiskPort> make_uring_port(int descriptor, int depth, std::string& why_not) {
  io_uring ring{};
  if (const int status = io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0); status < 0) {
    why_not = std::strerror(-status);
    return nullptr;
  }
  return std::make_unique<UringPort>(ring, descriptor);
}

}  // namespace dstrain
