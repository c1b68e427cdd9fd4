#include "launcher/process/process_state.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

namespace dstrain::launcher {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

ProcessState process_state(pid_t pid) {
  ProcessState state;
  const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = stat.rfind(')');  // the name itself may hold anything
  if (name_end == std::string::npos) return state;
  std::istringstream fields(stat.substr(name_end + 1));
  fields >> state.letter;
  // proc(5) counts from 1: the state is field 3, utime 14, stime 15.
  constexpr int kFieldsBetween = 10;
  std::string ignored;
  for (int i = 0; i < kFieldsBetween; ++i)
    fields >> ignored;
  std::int64_t user = 0;
  std::int64_t system = 0;
  if (fields >> user >> system) {
    const std::int64_t ticks_per_second = sysconf(_SC_CLK_TCK);
    state.cpu_time = std::chrono::nanoseconds{(user + system) * (1'000'000'000 / ticks_per_second)};
  }
  // The file holds "0" for a process that runs, and where the kernel does not say.
  state.kernel_wait = read_file(fmt::format("/proc/{}/wchan", pid));
  if (state.kernel_wait == "0") state.kernel_wait.clear();
  return state;
}

}  // namespace dstrain::launcher
