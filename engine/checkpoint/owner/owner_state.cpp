#include "engine/checkpoint/owner/owner_state.h"

#include <optional>

#include <fmt/format.h>

#include "engine/checkpoint/owner/kernel_lock.h"

namespace dstrain {
namespace {

/// Machines that nobody named are all called so.
bool is_named(const std::string& host) {
  return !host.empty() && host != "localhost" && !host.starts_with("localhost.") &&
         host != "(none)";
}

OwnerJudgement judge_process(const ProcessIdentity& process) {
  const std::optional<std::int64_t> ticks = start_ticks_of(process.pid);
  if (!ticks) {
    return {OwnerState::kDead, fmt::format("no process {} runs on this machine", process.pid)};
  }
  if (*ticks != process.start_ticks) {
    return {OwnerState::kDead,
            fmt::format("process {} of this machine is another one by now", process.pid)};
  }
  return {OwnerState::kAlive, fmt::format("process {} of this machine runs", process.pid)};
}

}  // namespace

OwnerJudgement judge_owner(const OwnerFile& owner, const ProcessIdentity& here) {
  const LockState lock = look_at_lock(owner.file.get());
  if (lock == LockState::kHeld) {
    return {OwnerState::kAlive, "it holds the kernel's lock on owner.json"};
  }
  if (!owner.record) {
    return {OwnerState::kUnknown, "owner.json is damaged"};
  }
  const ProcessIdentity& process = owner.record->process;
  if (process.boot_id == here.boot_id && !here.boot_id.empty()) {
    if (process.pid_namespace == here.pid_namespace) {
      return judge_process(process);  // a lock may be lost, on NFS, under a process that lives
    }
    if (owner.record->has_lock && lock == LockState::kFree) {
      return {OwnerState::kDead, "the kernel's lock on owner.json is free"};
    }
    return {OwnerState::kUnknown, "it is in another container of this machine"};
  }
  if (process.host == here.host && is_named(here.host)) {
    return {OwnerState::kDead, "this machine has been started again since"};
  }
  return {OwnerState::kUnknown,
          fmt::format("no lock of it is seen from here, on host {}", here.host)};
}

}  // namespace dstrain
