#include "engine/checkpoint/owner/run_owner.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "engine/checkpoint/durable_files.h"
#include "engine/checkpoint/owner/kernel_lock.h"
#include "engine/checkpoint/owner/owner_state.h"
#include "engine/comm/block_signals.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kGuardFile = ".owner.lock";

[[noreturn]] void fail_at(std::string_view what, const fs::path& path, int error) {
  throw StorageError(fmt::format("cannot {} {}: {}", what, path.string(), strerror(error)));
}

bool is_same_file(const struct stat& status, dev_t device, ino_t inode) {
  return status.st_dev == device && status.st_ino == inode;
}

bool operator==(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/// Other hosts see it once this returns: NFS sends a file to the server when it is closed.
void write_whole(const fs::path& path, std::string_view text) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) {
    fail_at("create", path, errno);
  }
  while (!text.empty()) {
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      fail_at("write", path, errno);
    }
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::close(file.release()) != 0) {
    fail_at("close", path, errno);
  }
}

std::string whom(const OwnerFile& owner) {
  return owner.record ? describe(*owner.record)
                      : std::string("a run that its owner.json, which is damaged, does not name");
}

/// Whether the owner is an earlier attempt of the same job, which the job knows has ended, or the
/// launcher of this attempt, which waits for it.
bool is_predecessor(const OwnerRecord& owner, const OwnerRecord& mine) {
  return owner.job == mine.job &&
         (owner.restart < mine.restart ||
          (owner.restart == mine.restart && owner.role == OwnerRole::kLauncher));
}

}  // namespace

/// A foreign owner whose heartbeat is being looked at.
struct RunOwner::Watch {
  dev_t device;
  ino_t inode;
  timespec beat;
  Clock::time_point since;
};

RunOwner::RunOwner(fs::path folder,
                   const OwnerClaim& claim,
                   const OwnerTiming& timing,
                   const ProcessIdentity& identity)
    : folder_(std::move(folder)),
      path_(folder_ / kOwnerFile),
      timing_(timing),
      take_over_(claim.take_over),
      identity_(identity),
      record_{.token = random_name(),
              .job = claim.job.empty() ? random_name() : claim.job,
              .restart = claim.restart,
              .role = claim.role,
              .process = identity,
              .since = utc_now()} {
  DurableFiles().make_folder(folder_);
  folder_file_ = FileDescriptor(::open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder_file_) {
    fail_at("open the folder", folder_, errno);
  }
  refuse_living();
  std::optional<Watch> watch;
  while (try_to_take(watch) == Step::kWatch) {
    std::this_thread::sleep_for(std::min(timing_.beat / 5, timing_.stale / 30));
  }
  const BlockSignals block;  // they are for the thread that ends a step
  heart_ = std::thread([this] { beat(); });
}

RunOwner::~RunOwner() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ended_.notify_all();
  heart_.join();
  try {
    give_back();
  } catch (const std::exception& error) {
    spdlog::warn("{} stays, and counts as left by a dead run: {}", path_.string(), error.what());
  }
}

/// Called before anything is locked or written, so that a start that has no chance disturbs nobody.
void RunOwner::refuse_living() const {
  const auto deadline = Clock::now() + timing_.guard;
  while (true) {
    const std::optional<OwnerFile> owner = open_owner_file(path_);
    if (!owner || take_over_ || (owner->record && is_predecessor(*owner->record, record_))) {
      return;
    }
    const OwnerJudgement judgement = judge_owner(*owner, identity_);
    const bool is_ending = judgement.state == OwnerState::kEnding;
    if (is_ending && Clock::now() < deadline) {  // large memory takes a while to be freed
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
      continue;
    }
    if (!is_ending && judgement.state != OwnerState::kAlive) {
      return;
    }
    throw FolderInUse(fmt::format(
        "{} belongs to {} ({}); stop that run or wait for its end, give this one a folder of its "
        "own (--set training.output_dir=DIR), or take the folder from it with --take-over",
        folder_.string(), whom(*owner), judgement.because));
  }
}

/// Returns a descriptor that is not open if this file system has no locks.
FileDescriptor RunOwner::lock_guard(std::chrono::milliseconds patience) const {
  const fs::path path = folder_ / kGuardFile;
  FileDescriptor guard(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  struct stat status {};
  if (!guard || ::fstat(guard.get(), &status) != 0) {
    fail_at("open", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw StorageError(fmt::format("{} is not a regular file: remove it", path.string()));
  }
  const auto deadline = Clock::now() + patience;
  while (true) {
    switch (try_lock(guard.get())) {
      case LockAttempt::kTaken:
        return guard;
      case LockAttempt::kNotSupported:
        return FileDescriptor();
      case LockAttempt::kHeldByOther:
        break;
    }
    if (Clock::now() > deadline) {
      throw FolderInUse(fmt::format(
          "{} has been locked for {} s by a run that is starting or committing a checkpoint: wait "
          "for it, or "
          "stop it if it hangs (fuser {} names its process on this machine)",
          path.string(), std::chrono::duration_cast<std::chrono::seconds>(patience).count(),
          path.string()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
}

RunOwner::Step RunOwner::try_to_take(std::optional<Watch>& watch) {
  FileDescriptor guard;
  try {
    guard = lock_guard(timing_.guard);
  } catch (const FolderInUse& error) {
    if (!take_over_) {
      throw;
    }
    spdlog::warn("{}; it is taken over nevertheless, and may still commit what it has begun",
                 error.what());
  }
  const std::optional<OwnerFile> owner = open_owner_file(path_);
  if (!owner) {
    install(/*replaces=*/false);
    return Step::kTaken;
  }
  if (owner->record && is_predecessor(*owner->record, record_)) {
    install(/*replaces=*/true);
    return Step::kTaken;
  }
  const OwnerJudgement judgement = judge_owner(*owner, identity_);
  if (take_over_ && judgement.state != OwnerState::kDead) {
    spdlog::warn("--take-over: {} is taken from {}, which stops before it writes anything more",
                 folder_.string(), whom(*owner));
    install(/*replaces=*/true);
    const bool may_be_alone = judgement.state == OwnerState::kAlive && guard;
    guard = FileDescriptor();
    if (!may_be_alone) {
      settle();
    }
    return Step::kTaken;
  }
  if (judgement.state == OwnerState::kAlive || judgement.state == OwnerState::kEnding) {
    guard = FileDescriptor();
    refuse_living();
    return Step::kWatch;  // it has just ended: look again
  }
  if (judgement.state == OwnerState::kDead) {
    spdlog::info("{} was left by {}; it is dead: {}", folder_.string(), whom(*owner),
                 judgement.because);
    install(/*replaces=*/true);
    return Step::kTaken;
  }
  const auto now = Clock::now();
  const bool is_watched = watch && watch->device == owner->device && watch->inode == owner->inode;
  if (!is_watched) {
    spdlog::info("{} may belong to {}: {}; watching its heartbeat for {} s", folder_.string(),
                 whom(*owner), judgement.because,
                 std::chrono::duration<double>(timing_.stale).count());
    watch = Watch{owner->device, owner->inode, owner->beat, now};
    return Step::kWatch;
  }
  if (!(watch->beat == owner->beat)) {
    throw FolderInUse(fmt::format(
        "{} belongs to {} (its heartbeat continues); stop that run or wait for its end, give this "
        "one a folder of its own (--set training.output_dir=DIR), or take the folder from it with "
        "--take-over",
        folder_.string(), whom(*owner)));
  }
  if (now - watch->since < timing_.stale) {
    return Step::kWatch;
  }
  spdlog::warn("{} was left by {}: no heartbeat for {} s", folder_.string(), whom(*owner),
               std::chrono::duration<double>(timing_.stale).count());
  install(/*replaces=*/true);
  guard = FileDescriptor();
  settle();
  return Step::kTaken;
}

/// Writes the whole record to a locked file of its own, which then gets the record's name. Where
/// there are locks, the caller holds the guard; without them link() decides between several starts.
void RunOwner::install(bool replaces) {
  const fs::path temporary = folder_ / fmt::format(".owner.{}.tmp", record_.token);
  file_ = FileDescriptor(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file_) {
    fail_at("create", temporary, errno);
  }
  try {
    record_.has_lock = try_lock(file_.get()) == LockAttempt::kTaken;
    write_whole(temporary, to_json(record_).dump(2) + "\n");
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) {
      fail_at("inspect", temporary, errno);
    }
    device_ = status.st_dev;
    inode_ = status.st_ino;
    bool is_linked = false;
    if (!replaces) {
      is_linked = ::link(temporary.c_str(), path_.c_str()) == 0;
      const int error = errno;
      // Over NFS the reply may get lost, and the second try then finds what the first one made.
      if (!is_linked && ::fstat(file_.get(), &status) == 0 && status.st_nlink > 1) {
        is_linked = true;
      }
      if (!is_linked && error == EEXIST) {
        throw FolderInUse(fmt::format("{}: another run has just begun there", folder_.string()));
      }
    }
    if (is_linked) {
      ::unlink(temporary.c_str());
    } else if (::rename(temporary.c_str(), path_.c_str()) != 0) {  // also where there are no links
      fail_at("rename to", path_, errno);
    }
  } catch (const std::exception&) {
    ::unlink(temporary.c_str());
    file_ = FileDescriptor();
    throw;
  }
}

/// Any other start that replaced the same owner without seeing this run's lock has done so by then.
void RunOwner::settle() const {
  std::this_thread::sleep_for(timing_.settle);
  require_anew();
}

void RunOwner::require() const {
  struct stat status {};
  if (!is_lost_.load(std::memory_order_relaxed)) {
    if (::stat(path_.c_str(), &status) == 0 ? is_same_file(status, device_, inode_)
                                            : errno != ENOENT && errno != ENOTDIR) {
      return;  // a write will report what stat cannot
    }
  }
  throw_loss();
}

RunOwner::Hold RunOwner::hold() const {
  require_anew();  // first, so that nothing is made in a folder that is not this run's
  FileDescriptor guard;
  try {
    guard = lock_guard(timing_.guard);
  } catch (const FolderInUse& error) {
    spdlog::warn("{}; this run, whose folder it is, continues", error.what());
  }
  require_anew();
  return Hold(std::move(guard));
}

void RunOwner::require_anew() const {
  const std::optional<OwnerFile> owner = open_owner_file(path_);
  if (!owner || !owner->record || owner->record->token != record_.token) {
    throw_loss();
  }
}

bool RunOwner::is_mine() const noexcept {
  try {
    const std::optional<OwnerFile> owner = open_owner_file(path_);
    return owner && owner->record && owner->record->token == record_.token;
  } catch (const std::exception&) {
    return false;
  }
}

void RunOwner::throw_loss() const {
  struct stat now {};
  struct stat begun {};
  const bool is_there = ::stat(folder_.c_str(), &now) == 0;
  if (!is_there || ::fstat(folder_file_.get(), &begun) != 0 ||
      !is_same_file(now, begun.st_dev, begun.st_ino)) {
    throw FolderGone(fmt::format(
        "{} was {} while this run used it: its metrics and checkpoints are not where the run has "
        "to leave them, so it stops",
        folder_.string(), is_there ? "replaced by another folder" : "deleted or moved away"));
  }
  const std::optional<OwnerFile> owner = open_owner_file(path_);
  if (!owner) {
    throw FolderInUse(fmt::format(
        "{}, by which {} belonged to this run, has been removed: another run may have been there, "
        "so this one stops and writes nothing more",
        path_.string(), folder_.string()));
  }
  throw FolderInUse(fmt::format("{} was taken over by {}: this run stops and writes nothing more",
                                folder_.string(), whom(*owner)));
}

/// Runs in a thread of its own, since a step may take minutes.
void RunOwner::beat() {
  bool is_synced = false;
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, timing_.beat, [this] { return is_ending_; })) {
    lock.unlock();
    if (!is_synced) {  // not as the run starts, which would wait for it
      is_synced = ::fsync(file_.get()) == 0;
    }
    ::futimens(file_.get(), nullptr);  // the file server's time, where there is one
    struct stat status {};
    const bool is_there = ::stat(path_.c_str(), &status) == 0;
    if (is_there ? !is_same_file(status, device_, inode_) : errno == ENOENT || errno == ENOTDIR) {
      is_lost_ = true;
    }
    lock.lock();
  }
}

void RunOwner::give_back() {
  if (!is_mine()) {
    return;
  }
  const FileDescriptor guard = lock_guard(timing_.guard);
  if (!is_mine()) {
    return;
  }
  if (!end_.empty()) {
    OwnerRecord last = record_;
    last.end = RunEnd{.time = utc_now(), .how = end_};
    const fs::path temporary = folder_ / fmt::format(".owner.{}.tmp", record_.token);
    write_whole(temporary,
                to_json(last).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    fs::rename(temporary, folder_ / kLastRunFile);
  }
  if (::unlink(path_.c_str()) != 0) {
    fail_at("remove", path_, errno);
  }
}

}  // namespace dstrain
