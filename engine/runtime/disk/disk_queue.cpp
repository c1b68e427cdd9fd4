#include "engine/runtime/disk/disk_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/base/storage_error.h"
#include "kernels/core/check.h"

namespace dstrain {

DiskQueue::DiskQueue(const ScratchFile& file, const DiskQueueOptions& options)
    : file_(file), options_(options), with_disk_(static_cast<std::size_t>(options.depth)) {
  check(options.depth > 0 && options.block_bytes > 0 &&
            options.block_bytes % ScratchFile::kBlockBytes == 0,
        "{} blocks of {} bytes at once", options.depth, options.block_bytes);
  for (int index = options.depth - 1; index >= 0; --index) {
    free_places_.push_back(index);
  }
  std::string why_not = "switched off";
  if (options.may_use_io_uring) {
    port_ = make_uring_port(file.descriptor(), options.depth, why_not);
  }
  if (port_ == nullptr) {
    port_ = make_thread_port(file.descriptor(), options.depth);
    spdlog::info("io_uring is not to be had ({}): {} is read and written by threads", why_not,
                 file.folder().string());
  }
}

DiskQueue::~DiskQueue() {
  drain();
}

void DiskQueue::drain() noexcept {
  waiting_.clear();
  while (std::ssize(free_places_) < options_.depth) {
    take_one();
  }
  open_.clear();
}

DiskQueue::Ticket DiskQueue::read(std::int64_t offset, void* to, std::int64_t bytes) {
  bytes_read_ += bytes;
  return enqueue(
      {.writes = false, .offset = offset, .memory = static_cast<std::byte*>(to), .bytes = bytes});
}

DiskQueue::Ticket DiskQueue::write(std::int64_t offset, const void* from, std::int64_t bytes) {
  bytes_written_ += bytes;
  auto* const memory = static_cast<std::byte*>(const_cast<void*>(from));  // only read
  return enqueue({.writes = true, .offset = offset, .memory = memory, .bytes = bytes});
}

DiskQueue::Ticket DiskQueue::enqueue(DiskBlock whole) {
  constexpr std::int64_t kUnit = ScratchFile::kBlockBytes;
  check(whole.offset % kUnit == 0 && whole.bytes % kUnit == 0 &&
            reinterpret_cast<std::uintptr_t>(whole.memory) % kUnit == 0,
        "{} bytes at offset {} and address {} are not aligned for the disk", whole.bytes,
        whole.offset, static_cast<const void*>(whole.memory));
  check(0 <= whole.offset && whole.offset + whole.bytes <= file_.bytes(),
        "bytes [{}, {}) of a file of {}", whole.offset, whole.offset + whole.bytes, file_.bytes());
  Open opened{.ticket = ++last_ticket_, .blocks = 0};
  for (std::int64_t done = 0; done < whole.bytes; done += options_.block_bytes) {
    waiting_.push_back({.block = {.writes = whole.writes,
                                  .offset = whole.offset + done,
                                  .memory = whole.memory + done,
                                  .bytes = std::min(options_.block_bytes, whole.bytes - done)},
                        .ticket = opened.ticket});
    ++opened.blocks;
  }
  if (opened.blocks > 0) {
    open_.push_back(opened);
  }
  fill_port();
  return opened.ticket;
}

void DiskQueue::fill_port() {
  if (waiting_.empty() || free_places_.empty()) {
    return;
  }
  while (!waiting_.empty() && !free_places_.empty()) {
    const int index = free_places_.back();
    free_places_.pop_back();
    Job& job = with_disk_[static_cast<std::size_t>(index)];
    job = waiting_.front();
    waiting_.pop_front();
    port_->submit(job.block, index);
  }
  port_->flush();
}

void DiskQueue::take_one() {
  const DiskPort::Result result = port_->take();
  Job& job = with_disk_[static_cast<std::size_t>(result.index)];
  DiskBlock& block = job.block;
  const bool again = result.error == EINTR || result.error == EAGAIN;
  if (result.error != 0 && !again) {
    note_failure(block, result.error);
  } else if (!again && result.bytes == 0) {
    note_failure(block, EIO);  // the file ends before what was written to it
  } else if (result.bytes < block.bytes) {
    block.offset += result.bytes;
    block.memory += result.bytes;
    block.bytes -= result.bytes;
    port_->submit(block, result.index);
    port_->flush();
    return;
  }
  free_places_.push_back(result.index);
  const auto open = std::find_if(open_.begin(), open_.end(),
                                 [&](const Open& o) { return o.ticket == job.ticket; });
  if (open != open_.end() && --open->blocks == 0) {
    open_.erase(open);
  }
  fill_port();
}

bool DiskQueue::is_open(Ticket ticket) const {
  return std::any_of(open_.begin(), open_.end(),
                     [&](const Open& open) { return open.ticket == ticket; });
}

void DiskQueue::note_failure(const DiskBlock& block, int error) {
  if (!failure_.empty()) {
    return;
  }
  failure_ = fmt::format(
      "{}: {} {} at byte {} of this rank's scratch file failed: {}{}", file_.folder().string(),
      block.writes ? "writing" : "reading", size_text(block.bytes), block.offset,
      std::strerror(error),
      error == ENOSPC ? fmt::format(", {} are free", size_text(file_.free_bytes())) : "");
}

void DiskQueue::wait(Ticket ticket) {
  while (failure_.empty() && is_open(ticket)) {
    take_one();
  }
  if (!failure_.empty()) {
    throw StorageError(failure_);
  }
}

void DiskQueue::wait_for_all() {
  while (failure_.empty() && !open_.empty()) {
    take_one();
  }
  if (!failure_.empty()) {
    throw StorageError(failure_);
  }
}

}  // namespace dstrain
