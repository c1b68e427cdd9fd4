#include "engine/checkpoint/owner/owner_state.h"

#include <optional>

#include <fmt/format.h>

#include "engine/checkpoint/owner/kernel_lock.h"

namespace dstrain {
namespace {

/// Machines that were never given a name all have this one.
bool is_named(const std::string& host) {
  return !host.empty() && host != "localhost" && !host.starts_with("localhost.") &&
         host != "(none)";
}

bool is_of_this_boot(const ProcessIdentity& process, const ProcessIdentity& here) {
  return process.boot_id == here.boot_id && !here.boot_id.empty();
}

/// Whether its process id means here what it meant there.
bool is_of_these_processes(const ProcessIdentity& process, const ProcessIdentity& here) {
  return is_of_this_boot(process, here) && process.pid_namespace == here.pid_namespace;
}

OwnerJudgement judge_process(const ProcessIdentity& process) {
  const std::optional<std::int64_t> ticks = start_ticks_of(process.pid);
  if (!ticks) {
    return {OwnerState::kDead, fmt::format("no process {} runs on this machine", process.pid)};
  }
  if (*ticks != process.start_ticks) {
    return {OwnerState::kDead,
            fmt::format("process {} of this machine is another process by now", process.pid)};
  }
  return {OwnerState::kAlive, fmt::format("process {} of this machine runs", process.pid)};
}

}  // namespace

OwnerJudgement judge_owner(const OwnerFile& owner, const ProcessIdentity& here) {
  const LockState lock = look_at_lock(owner.file.get());
  if (lock == LockState::kHeld) {
    const bool is_seen = owner.record && is_of_these_processes(owner.record->process, here);
    const bool is_gone = is_seen && !start_ticks_of(owner.record->process.pid);
    return {is_gone ? OwnerState::kEnding : OwnerState::kAlive,
            "it holds the kernel's lock on owner.json"};
  }
  if (!owner.record) {
    return {OwnerState::kUnknown, "owner.json is damaged"};
  }
  const ProcessIdentity& process = owner.record->process;
  if (is_of_these_processes(process, here)) {
    return judge_process(process);  // a lock may be lost, on NFS, under a process that lives
  }
  if (is_of_this_boot(process, here)) {
    if (owner.record->has_lock && lock == LockState::kFree) {
      return {OwnerState::kDead, "the kernel's lock on owner.json is free"};
    }
    return {OwnerState::kUnknown, "it is in another container of this machine"};
  }
  if (process.host == here.host && is_named(here.host)) {
    return {OwnerState::kDead, "this machine has been rebooted since"};
  }
  return {OwnerState::kUnknown,
          fmt::format("its lock cannot be seen from here, host {}", here.host)};
}

}  // namespace dstrain
