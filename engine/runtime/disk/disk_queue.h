// DiskQueue: reads and writes of a ScratchFile that go on while the caller does something else.
// They are cut into blocks, of which a limited number is with the disk at once: by io_uring (Axboe
// 2019, "Efficient IO with io_uring"), or by threads where the system forbids that, as many
// containers do.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/disk/scratch_file.h"

namespace dstrain {

struct DiskQueueOptions {
  std::int64_t block_bytes = std::int64_t{1} << 20;  ///< a multiple of ScratchFile::kBlockBytes
  int depth = 32;                                    ///< blocks that the disk has at once
  bool may_use_io_uring = true;
};

/// A block that the disk is to read into memory, or write from there.
struct DiskBlock {
  bool writes = false;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
};

/// The way to the disk: takes blocks, and gives them back in any order once they are done.
class DiskPort {
 public:
  DiskPort() = default;
  DiskPort(const DiskPort&) = delete;
  DiskPort& operator=(const DiskPort&) = delete;
  virtual ~DiskPort() = default;

  /// `index` comes back with the result. flush() ends a series of these.
  virtual void submit(const DiskBlock& block, int index) = 0;
  virtual void flush() = 0;
  struct Result {
    int index = 0;
    std::int64_t bytes = 0;  ///< done of the block, possibly fewer than asked for
    int error = 0;           ///< an errno; 0: none
  };
  /// Waits for a block that was submitted.
  virtual Result take() = 0;
};
/// Returns nullptr, and in `why_not` the reason, where the system forbids io_uring.
std::unique_ptr<DiskPort> make_uring_port(int descriptor, int depth, std::string& why_not);
std::unique_ptr<DiskPort> make_thread_port(int descriptor, int depth);

/// Used by one thread at a time. Memory that is read into or written from stays valid until its
/// ticket has been waited for, or the queue is destroyed, which waits for all.
class DiskQueue {
 public:
  using Ticket = std::uint64_t;

  /// `file` outlives the queue.
  DiskQueue(const ScratchFile& file, const DiskQueueOptions& options);
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;
  ~DiskQueue();

  /// Offset, address and size are multiples of ScratchFile::kBlockBytes.
  Ticket read(std::int64_t offset, void* to, std::int64_t bytes);
  Ticket write(std::int64_t offset, const void* from, std::int64_t bytes);
  /// Waits until a read or write is done; of a ticket that was waited for before, returns at once.
  /// Throws StorageError if anything has failed since the beginning.
  void wait(Ticket ticket);
  void wait_for_all();
  /// Waits for all that the disk has, whatever fails; what has not begun is left undone.
  void drain() noexcept;

  [[nodiscard]] const DiskQueueOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t bytes_read() const { return bytes_read_; }
  [[nodiscard]] std::int64_t bytes_written() const { return bytes_written_; }

 private:
  struct Job {
    DiskBlock block;
    Ticket ticket = 0;
  };
  struct Open {
    Ticket ticket = 0;
    int blocks = 0;
  };
  Ticket enqueue(DiskBlock whole);
  void fill_port();
  void take_one();
  [[nodiscard]] bool is_open(Ticket ticket) const;
  void note_failure(const DiskBlock& block, int error);

  const ScratchFile& file_;
  DiskQueueOptions options_;
  std::unique_ptr<DiskPort> port_;
  std::deque<Job> waiting_;       // not with the disk yet
  std::vector<Job> with_disk_;    // by index
  std::vector<int> free_places_;  // indices of with_disk_
  std::vector<Open> open_;        // tickets that are not done
  Ticket last_ticket_ = 0;
  std::string failure_;  // the first
  std::int64_t bytes_read_ = 0;
  std::int64_t bytes_written_ = 0;
};

}  // namespace dstrain
