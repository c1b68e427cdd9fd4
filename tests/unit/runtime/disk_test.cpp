// What is kept on a disk: a file without a name, read and written by a queue, and the tensors on
// it.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/storage_error.h"
#include "engine/config/config_error.h"
#include "engine/runtime/disk/disk_device.h"
#include "engine/runtime/disk/disk_queue.h"
#include "engine/runtime/disk/scratch_file.h"
#include "kernels/backend.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

constexpr std::int64_t kUnit = ScratchFile::kBlockBytes;

/// The folder in which tests run, which lies on a disk; /tmp may not.
std::string disk_folder() {
  return fs::current_path().string();
}

DeviceMemory aligned(std::int64_t bytes) {
  return make_cpu_backend(1).device->allocate(bytes, "memory of a test");
}

std::vector<std::byte> random_bytes(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

TEST_CASE("a scratch file has no name and is as large as what is reserved", "[disk]") {
  const fs::path folder = fs::path(disk_folder()) / fmt::format("scratch-{}", ::getpid());
  fs::create_directory(folder);
  {
    ScratchFile file(folder, "key");
    CHECK(file.extend(10'000, "states") == 0);
    CHECK(file.extend(1, "more") == 3 * kUnit);
    CHECK(file.bytes() == 4 * kUnit);
    struct stat status {};
    REQUIRE(::fstat(file.descriptor(), &status) == 0);
    CHECK(status.st_size == 4 * kUnit);
    CHECK(status.st_blocks * 512 >= 4 * kUnit);  // reserved, not only promised
    CHECK(status.st_nlink == 0);
    CHECK(fs::is_empty(folder));
  }
  fs::remove(folder);
}

TEST_CASE("a folder that cannot be offloaded to is refused with the reason", "[disk]") {
  const auto why = [](const std::string& folder) -> std::string {
    try {
      const ScratchFile file(folder, "some.key");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(why("/no/such/folder"),
             Contains("some.key: /no/such/folder is not there on this host"));
  CHECK_THAT(why("/proc/self/exe"), Contains("is not a folder"));
  CHECK_THAT(why("/dev/shm"), Contains("lies in memory (tmpfs)"));
  CHECK_THAT(why("/proc"), Contains("no file can be made in /proc"));
}

TEST_CASE("what does not fit on the disk is refused with needed and free bytes", "[disk]") {
  ScratchFile file(disk_folder(), "key");
  const std::int64_t too_much = file.free_bytes() + (std::int64_t{1} << 40);
  try {
    file.extend(too_much, "the states");
    FAIL("a disk that takes more than it has room for");
  } catch (const StorageError& error) {
    CHECK_THAT(error.what(),
               Contains("the states need") &&
                   Contains(fmt::format("({} bytes) on disk", file.in_blocks(too_much))) &&
                   Contains("are free: No space left on device"));
  }
  CHECK(file.bytes() == 0);
}

TEST_CASE("a queue returns what it was given, whatever the blocks and the way to the disk",
          "[disk]") {
  constexpr std::int64_t kBytes = 37 * kUnit;
  for (const bool uring : {true, false}) {
    for (const auto& [block, depth] :
         {std::pair{kUnit, 1}, {kUnit, 3}, {4 * kUnit, 2}, {64 * kUnit, 32}}) {
      CAPTURE(uring, block, depth);
      ScratchFile file(disk_folder(), "key");
      file.extend(kBytes, "bytes");
      const DeviceMemory written = aligned(kBytes);
      const DeviceMemory read = aligned(kBytes);
      const std::vector<std::byte> bytes = random_bytes(kBytes, 1);
      std::memcpy(written.data(), bytes.data(), bytes.size());
      DiskQueue queue(file, {.block_bytes = block, .depth = depth, .may_use_io_uring = uring});
      // Three writes under way at once, waited for in another order.
      const auto part = [&](std::int64_t first, std::int64_t count) {
        return queue.write(first * kUnit, static_cast<std::byte*>(written.data()) + first * kUnit,
                           count * kUnit);
      };
      const auto a = part(0, 11);
      const auto b = part(11, 1);
      const auto c = part(12, 25);
      queue.wait(c);
      queue.wait(a);
      queue.wait(b);
      queue.wait(b);
      queue.wait(queue.read(0, read.data(), kBytes));
      CHECK(std::memcmp(read.data(), bytes.data(), bytes.size()) == 0);
      CHECK(queue.bytes_read() == kBytes);
      CHECK(queue.bytes_written() == kBytes);
    }
  }
}

TEST_CASE("a read that the disk refuses fails with its place, and so does all that follows",
          "[disk]") {
  for (const bool uring : {true, false}) {
    CAPTURE(uring);
    ScratchFile file(disk_folder(), "key");
    file.extend(16 * kUnit, "bytes");
    REQUIRE(::ftruncate(file.descriptor(), 8 * kUnit) == 0);  // as a disk that loses its end
    const DeviceMemory memory = aligned(16 * kUnit);
    DiskQueue queue(file, {.block_bytes = 4 * kUnit, .depth = 4, .may_use_io_uring = uring});
    queue.wait(queue.read(0, memory.data(), 8 * kUnit));
    CHECK_THROWS_WITH(queue.wait(queue.read(4 * kUnit, memory.data(), 8 * kUnit)),
                      Contains(disk_folder()) && Contains("reading 16.0 KiB at byte 32768") &&
                          Contains("Input/output error"));
    CHECK_THROWS_AS(queue.wait(queue.read(0, memory.data(), kUnit)), StorageError);
    CHECK_THROWS_AS(queue.wait_for_all(), StorageError);
  }
}

TEST_CASE("tensors on a disk keep every byte, aligned or not", "[disk]") {
  Backend cpu = make_cpu_backend(1);
  const std::unique_ptr<Stream> stream = cpu.device->make_side_stream("disk");
  DiskDevice disk({.folder = disk_folder(), .key = "key", .block_bytes = 4096, .depth = 3});
  constexpr std::int64_t kElements = 50'000;
  const DeviceMemory first = disk.allocate(kElements * 4, "a tensor");
  const DeviceMemory second = disk.allocate(kElements * 2, "another tensor");
  const DeviceMemory staging = aligned(8 * kUnit);
  disk.serve(*stream, {static_cast<std::byte*>(staging.data()), 8 * kUnit});
  std::vector<std::byte> expected = random_bytes(kElements * 4, 2);
  const Tensor whole{first.data(), DType::kF32, Shape{kElements}};
  disk.copy_from_host(expected.data(), whole, *stream);
  const Tensor beside{second.data(), DType::kBF16, Shape{kElements}};
  const std::vector<std::byte> other = random_bytes(kElements * 2, 3);
  disk.copy_from_host(other.data(), beside, *stream);
  std::vector<std::byte> found(expected.size());
  const auto check_all = [&] {
    disk.copy_to_host(whole, found.data(), *stream);
    stream->synchronize();
    CHECK(found == expected);
    std::vector<std::byte> unharmed(other.size());
    disk.copy_to_host(beside, unharmed.data(), *stream);
    stream->synchronize();
    CHECK(unharmed == other);
  };
  check_all();
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                   {1023, 1025},
                                   {1024, 2048},
                                   {7, 30'001},
                                   {49'999, 50'000},
                                   {100, 100}}) {
    CAPTURE(begin, end);
    const std::vector<std::byte> part = random_bytes((end - begin) * 4, 4);
    std::copy(part.begin(), part.end(), expected.begin() + begin * 4);
    disk.copy_from_host(part.data(), whole.flat(begin, end), *stream);
    stream->synchronize();
    check_all();
    std::vector<std::byte> visited;
    disk.visit_parts(whole.flat(begin, end), [&](ConstTensor piece, std::int64_t at) {
      CHECK(at * 4 == std::ssize(visited));
      const auto* const bytes = static_cast<const std::byte*>(piece.data());
      visited.insert(visited.end(), bytes, bytes + piece.bytes());
    });
    CHECK(visited == part);
  }
}

}  // namespace
}  // namespace dstrain
