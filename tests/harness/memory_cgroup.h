// MemoryCgroup: a memory limit for a test's program, where this process may make one.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <sys/mman.h>
#include <unistd.h>

namespace dstrain::testing {

class MemoryCgroup {
 public:
  explicit MemoryCgroup(std::int64_t limit_bytes) {
    namespace fs = std::filesystem;
    const bool is_version_2 = fs::exists("/sys/fs/cgroup/cgroup.controllers");
    const fs::path root = is_version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const fs::path folder = root / ("dstrain_test_" + std::to_string(getpid()));
    std::error_code error;
    if (!fs::create_directory(folder, error)) {
      obstacle_ = folder.string() + ": " + error.message();
      return;
    }
    folder_ = folder;
    const char* const limit = is_version_2 ? "memory.max" : "memory.limit_in_bytes";
    std::ofstream file(folder_ / limit);
    file << limit_bytes;
    if (!file.flush()) obstacle_ = (folder_ / limit).string() + ": cannot be written";
    // Closes the way out of the limit through swap, where there is one.
    std::ofstream(folder_ / (is_version_2 ? "memory.swap.max" : "memory.swappiness")) << 0;
  }
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;
  ~MemoryCgroup() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove(folder_, ignored);
  }

  /// The reason why there is none, or empty.
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }
  /// The shell command by which a process enters it.
  [[nodiscard]] std::string enter() const {
    return "echo $$ > " + (folder_ / "cgroup.procs").string() + " && ";
  }
  /// Starts a process that takes this much memory within the limit and keeps it until it is killed.
  [[nodiscard]] pid_t start_eater(std::size_t bytes) const {
    const pid_t child = fork();
    if (child != 0) return child;
    std::ofstream(folder_ / "cgroup.procs") << getpid() << std::flush;
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) std::memset(memory, 1, bytes);
    pause();
    _exit(0);
  }

 private:
  std::filesystem::path folder_;
  std::string obstacle_;
};

}  // namespace dstrain::testing
