// What tests of processes share: a temporary folder, shell programs as ranks, and whether a process
// still exists.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "launcher/process/job.h"

namespace dstrain::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dstrain_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(path_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path path_;
};

/// One rank per script, all on "w0".
inline launcher::Job shell_job(const std::vector<std::string>& scripts) {
  launcher::Job job;
  for (const std::string& script : scripts) {
    const auto rank = static_cast<int>(job.processes.size());
    job.processes.push_back({.host = "w0",
                             .rank = rank,
                             .local_rank = rank,
                             .executable = "/bin/sh",
                             .argv = {"sh", "-c", script}});
  }
  return job;
}

/// Whether the process exists and is not a zombie.
inline bool is_alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(stat, line)) return false;
  const char state = line[line.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

/// Waits for `done()`, at most for the given time.
template <typename Condition>
bool becomes_true(const Condition& done, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}

}  // namespace dstrain::testing
