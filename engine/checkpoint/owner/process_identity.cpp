#include "engine/checkpoint/owner/process_identity.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace dstrain {
namespace {

std::string first_line(const char* path) {
  std::string line;
  std::ifstream in(path);
  std::getline(in, line);
  return line;
}

std::string user_name() {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> buffer{};
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr) {
    return found->pw_name;
  }
  return fmt::format("{}", geteuid());
}

}  // namespace

ProcessIdentity own_identity() {
  utsname machine{};
  uname(&machine);
  std::error_code unknown;  // no /proc: the fields stay empty, and say nothing
  return {.host = machine.nodename,
          .boot_id = first_line("/proc/sys/kernel/random/boot_id"),
          .pid_namespace = std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string(),
          .pid = getpid(),
          .start_ticks = start_ticks_of(getpid()).value_or(0),
          .user = user_name()};
}

std::optional<std::int64_t> start_ticks_of(std::int64_t pid) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid).c_str());
  const std::size_t name_end = line.rfind(')');  // the name may hold anything, also ") "
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(line.substr(name_end + 1));
  std::string state;
  fields >> state;  // field 3
  if (state == "Z" || state == "X") {
    return std::nullopt;
  }
  constexpr int kBetween = 18;  // fields 4 to 21
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) {
    fields >> skipped;
  }
  std::int64_t ticks = 0;
  return fields >> ticks ? std::optional(ticks) : std::nullopt;
}

}  // namespace dstrain
