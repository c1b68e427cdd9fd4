// ProcessIdentity: which process of which boot of which host this is, so that somebody else can
// tell later whether it still lives. A process id alone cannot: ids are given out again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dstrain {

struct ProcessIdentity {
  std::string host;
  std::string boot_id;        ///< of the kernel, new at each boot; the same in all its containers
  std::string pid_namespace;  ///< in which `pid` means something: "pid:[4026531836]"
  std::int64_t pid = 0;
  std::int64_t start_ticks = 0;  ///< when the process began, as /proc/PID/stat counts
  std::string user;

  bool operator==(const ProcessIdentity&) const = default;
};

/// This process.
ProcessIdentity own_identity();

/// Field 22 of /proc/PID/stat; none where no such process runs: a zombie does not.
std::optional<std::int64_t> start_ticks_of(std::int64_t pid);

}  // namespace dstrain
