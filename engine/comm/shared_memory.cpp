#include "engine/comm/shared_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace dstrain {
namespace {

constexpr std::string_view kMemory = "m";
constexpr std::string_view kNone = "n";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::generic_category().message(errno));
}

FileDescriptor make_file(std::int64_t bytes) {
  FileDescriptor file(memfd_create("dstrain ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) fail("memfd_create");
  if (fallocate(file.get(), 0, 0, bytes) != 0) fail("fallocate");
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) fail("sealing it");
  return file;
}

/// One byte of payload, and room for the descriptor that goes with it.
struct Message {
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{.msg_name = nullptr,
                .msg_namelen = 0,
                .msg_iov = &part,
                .msg_iovlen = 1,
                .msg_control = control,
                .msg_controllen = sizeof control,
                .msg_flags = 0};
  Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

void send_file(const FileDescriptor& socket, const FileDescriptor& file) {
  Message message;
  message.byte = kMemory[0];
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = file.get();
  std::memcpy(CMSG_DATA(rights), &number, sizeof number);
  if (sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) != 1) fail("passing a descriptor");
}

void wait_until_readable(const FileDescriptor& socket, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{.fd = socket.get(), .events = POLLIN, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) fail("poll");
    if (left <= 0) throw std::runtime_error("the deadline passed without an answer");
  }
}

/// Not valid if the other end has nothing to give.
FileDescriptor receive_file(const FileDescriptor& socket, Clock::time_point deadline) {
  wait_until_readable(socket, deadline);
  Message message;
  const ssize_t got = recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC);
  if (got < 0) fail("receiving a descriptor");
  if (got == 0) throw std::runtime_error("it closed the connection");
  FileDescriptor file;
  const cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
      rights->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(rights), sizeof number);
    file = FileDescriptor(number);
  }
  if (message.byte != kMemory[0] && message.byte != kNone[0]) {
    throw std::runtime_error("it runs another build of dstrain");
  }
  return file;
}

}  // namespace

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    munmap(data_, static_cast<std::size_t>(bytes_));
  }
}

// A file that could still be cut short would kill this process with SIGBUS at a touch.
SharedMemory SharedMemory::map(const FileDescriptor& file, std::int64_t bytes) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail("fstat");
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (status.st_size != bytes || seals < 0 || (seals & kSeals) != kSeals) {
    throw std::runtime_error("it is not sealed at the size expected");
  }
  void* const data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (data == MAP_FAILED) fail("mmap");
  SharedMemory memory;
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

SharedMemoryOrReason give_memory(const FileDescriptor& socket, std::int64_t bytes) {
  SharedMemoryOrReason made;
  FileDescriptor file;
  try {
    file = make_file(bytes);
    made.memory = SharedMemory::map(file, bytes);
  } catch (const std::runtime_error& failure) {
    made.reason = failure.what();
    send_all(socket, kNone, Clock::now());
    return made;
  }
  send_file(socket, file);
  return made;
}

SharedMemoryOrReason take_memory(const FileDescriptor& socket,
                                 std::int64_t bytes,
                                 Clock::time_point deadline) {
  const FileDescriptor file = receive_file(socket, deadline);
  if (!file) {
    return {.memory = {}, .reason = "the other rank has none to give"};
  }
  SharedMemoryOrReason taken;
  try {
    taken.memory = SharedMemory::map(file, bytes);
  } catch (const std::runtime_error& failure) {
    taken.reason = failure.what();
  }
  send_all(socket, taken.memory ? kMemory : kNone, Clock::now());
  return taken;
}

bool has_mapped(const FileDescriptor& socket, Clock::time_point deadline) {
  return receive_exactly(socket, 1, deadline) == kMemory;
}

}  // namespace dstrain
