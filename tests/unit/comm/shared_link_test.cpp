// Memory between two processes of a host: how it is passed on, and what is believed of the other
// end.
#include "engine/comm/shared_link.h"

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

constexpr std::int64_t kSegmentBytes = 4096;

struct Sockets {
  FileDescriptor giver;
  FileDescriptor taker;
};
Sockets make_sockets() {
  int ends[2] = {-1, -1};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// One link, as both processes see it.
struct BothEnds {
  std::byte* memory;
  std::unique_ptr<SharedLink> giver;
  std::unique_ptr<SharedLink> taker;
};
BothEnds make_ends(std::int64_t segment_bytes = kSegmentBytes) {
  const Sockets sockets = make_sockets();
  const std::int64_t bytes = SharedLink::bytes(segment_bytes);
  SharedMemoryOrReason given = give_memory(sockets.giver, bytes);
  SharedMemoryOrReason taken = take_memory(sockets.taker, bytes, Clock::now() + 5s);
  REQUIRE(has_mapped(sockets.giver, Clock::now() + 5s));
  REQUIRE(given.memory);
  REQUIRE(taken.memory);
  return {
      given.memory.data(),
      std::make_unique<SharedLink>(std::move(given.memory), SharedLink::End::kGiver, segment_bytes),
      std::make_unique<SharedLink>(std::move(taken.memory), SharedLink::End::kTaker,
                                   segment_bytes)};
}

std::array<std::byte, 100> pattern(int first) {
  std::array<std::byte, 100> made{};
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = static_cast<std::byte>(static_cast<std::size_t>(first) + i);
  }
  return made;
}

TEST_CASE("a segment comes back with what its receiver wrote, both ways and many times", "[comm]") {
  const BothEnds ends = make_ends();
  for (int turn = 0; turn < 11; ++turn) {
    SharedLink& from = turn % 2 == 0 ? *ends.giver : *ends.taker;
    SharedLink& to = turn % 2 == 0 ? *ends.taker : *ends.giver;
    auto data = pattern(turn);
    std::int64_t left = 1;
    REQUIRE(from.has_window_room());
    from.send_to_window(data.data(), 100, {.to = data.data(), .left = &left});
    REQUIRE(to.in_window() == 1);
    std::byte* const segment = to.take();
    CHECK(std::memcmp(segment, pattern(turn).data(), 100) == 0);
    const auto answer = pattern(turn + 100);
    std::memcpy(segment, answer.data(), 100);
    CHECK_FALSE(from.take_back());
    to.give_back();
    CHECK(from.take_back());
    CHECK(left == 0);
    CHECK(data == answer);
  }
}

TEST_CASE("a link has as much room as it has slots, and who sleeps is woken once", "[comm]") {
  const BothEnds ends = make_ends();
  const auto data = pattern(0);
  CHECK_FALSE(ends.giver->must_wake_peer());
  ends.taker->set_asleep(true);
  for (std::int64_t i = 0; i < SharedLink::kSlots; ++i) {
    REQUIRE(ends.giver->has_window_room());
    REQUIRE(ends.giver->has_direct_room());
    ends.giver->send_to_window(data.data(), 100, {});
    ends.giver->send_directly({.channel = 1, .bytes = 100, .offset = i}, data.data());
    CHECK(ends.giver->must_wake_peer() == (i == 0));
  }
  CHECK_FALSE(ends.giver->has_window_room());
  CHECK_FALSE(ends.giver->has_direct_room());
  for (std::int64_t i = 0; i < SharedLink::kSlots; ++i) {
    const auto header = ends.taker->next_direct();
    REQUIRE(header);
    CHECK(header->offset == i);
    CHECK(header->bytes == 100);
    std::array<std::byte, 100> got{};
    ends.taker->take_direct(got.data(), 100, SharedLink::Caches::kUse);
    CHECK(got == data);
  }
  CHECK_FALSE(ends.taker->next_direct());
  CHECK(ends.giver->has_direct_room());
  (void)ends.taker->take();
  ends.taker->release();
  CHECK(ends.giver->take_back());
  CHECK(ends.giver->has_window_room());
}

TEST_CASE("a copy past the caches is a copy, wherever it goes", "[comm]") {
  constexpr std::int64_t kLarge = 256 << 10;
  const BothEnds ends = make_ends(kLarge);
  std::vector<std::byte> data(kLarge);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::byte>(i * 7919 >> 3);
  }
  for (const std::int64_t bytes : {std::int64_t{1}, kLarge - 1, kLarge}) {
    for (const std::int64_t shift : {0, 1, 16}) {
      std::vector<std::byte> got(kLarge + 16);
      ends.giver->send_directly(
          {.channel = 1, .bytes = static_cast<std::uint32_t>(bytes), .offset = 0}, data.data());
      REQUIRE(ends.taker->next_direct());
      ends.taker->take_direct(got.data() + shift, bytes, SharedLink::Caches::kPass);
      CHECK(std::memcmp(got.data() + shift, data.data(), static_cast<std::size_t>(bytes)) == 0);
    }
  }
}

TEST_CASE("counts and sizes that cannot be are refused", "[comm]") {
  const auto write = [](std::byte* to, std::int64_t value) {
    std::memcpy(to, &value, sizeof value);
  };
  {  // what the giver has filled of its window comes first in the memory
    const BothEnds ends = make_ends();
    write(ends.memory, SharedLink::kSlots + 1);
    CHECK_THROWS_AS(ends.taker->in_window(), FrameRefused);
    write(ends.memory, -1);
    CHECK_THROWS_AS(ends.taker->in_window(), FrameRefused);
    write(ends.memory, SharedLink::kSlots);
    CHECK(ends.taker->in_window() == SharedLink::kSlots);
  }
  {  // and then what the taker says it has emptied of it
    const BothEnds ends = make_ends();
    write(ends.memory + 128, 1);
    CHECK_THROWS_AS(ends.giver->take_back(), FrameRefused);
  }
  {
    const BothEnds ends = make_ends();
    std::vector<std::byte> long_one(kSegmentBytes);
    ends.giver->send_directly({.channel = 1, .bytes = kSegmentBytes, .offset = 0}, long_one.data());
    std::vector<std::byte> got(kSegmentBytes);
    REQUIRE(ends.taker->next_direct());
    ends.taker->take_direct(got.data(), kSegmentBytes, SharedLink::Caches::kPass);
    const FrameHeader honest{.channel = 1, .bytes = 8, .offset = 0};
    ends.giver->send_directly(honest, long_one.data());
    const std::string_view all(reinterpret_cast<const char*>(ends.memory), 4096);
    const std::size_t header = all.find({reinterpret_cast<const char*>(&honest), sizeof honest});
    REQUIRE(header != std::string_view::npos);
    const std::uint32_t too_much = kSegmentBytes + 1;
    std::memcpy(ends.memory + header + 4, &too_much, sizeof too_much);
    CHECK_THROWS_AS(ends.taker->next_direct(), FrameRefused);
  }
}

TEST_CASE("memory that could be cut short, or has another size, is not mapped", "[comm]") {
  const FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(file.get(), 8192) == 0);
  CHECK_THAT(thrown<std::runtime_error>([&] { (void)SharedMemory::map(file, 8192); }),
             Contains("sealed"));
  REQUIRE(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  CHECK_THAT(thrown<std::runtime_error>([&] { (void)SharedMemory::map(file, 4096); }),
             Contains("size"));
  CHECK(SharedMemory::map(file, 8192));
}

TEST_CASE("who takes memory waits no longer than its deadline, nor for the dead", "[comm]") {
  Sockets sockets = make_sockets();
  const auto start = Clock::now();
  CHECK_THAT(thrown<std::runtime_error>(
                 [&] { (void)take_memory(sockets.taker, 4096, Clock::now() + 50ms); }),
             Contains("deadline"));
  sockets.giver = FileDescriptor();
  CHECK_THAT(thrown<std::runtime_error>(
                 [&] { (void)take_memory(sockets.taker, 4096, Clock::now() + 5s); }),
             Contains("closed"));
  CHECK(Clock::now() - start < 2s);
}

}  // namespace
}  // namespace dstrain
