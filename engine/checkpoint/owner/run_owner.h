// RunOwner: a run's folder belongs to it as long as this lives. A second run that starts there is
// refused; one that takes the folder over makes this one stop before its next change.
//
//   owner.json     who it is (owner_record.h); it holds the kernel's lock on this file, and renews
//                  its time every few seconds. It exists while a run has the folder, and after a
//                  crash
//   .owner.lock empty, and stays: locked for the moment in which the owner changes, and in which
//                  the owner commits, so that neither interrupts the other
//   last-run.json  the owner before, and how it ended, where it ended in an orderly way
//
// Where locks work, on one machine and over NFS, all of this is exact. Where they do not,
// owner.json appears by link(2), which one process alone succeeds at, the heartbeat says who lives,
// and two things remain: two hosts that replace the same dead owner in the same moment find out a
// second later (OwnerTiming::settle), and an owner that is taken from between looking and renaming
// commits that one checkpoint.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/file_descriptor.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/owner/owner_record.h"

namespace dstrain {

/// A run claims its folder with this.
struct OwnerClaim {
  std::string job;  ///< empty: this process is a job of its own
  int restart = 0;
  OwnerRole role = OwnerRole::kRank0;
  bool take_over = false;  ///< also from a run that lives
};

struct OwnerTiming {
  std::chrono::milliseconds beat{5'000};    ///< between two heartbeats
  std::chrono::milliseconds stale{30'000};  ///< without one, watched from here: dead
  std::chrono::milliseconds settle{1'000};  ///< after replacing another machine's owner
  std::chrono::milliseconds guard{10'000};  ///< for somebody who commits, or takes the folder
};

class RunOwner {
 public:
  /// Makes the folder where there is none. Waits where a foreign heartbeat must be watched, and
  /// says so. Throws FolderInUse, naming the owner, or StorageError. `identity` is for tests.
  RunOwner(std::filesystem::path folder,
           const OwnerClaim& claim,
           const OwnerTiming& timing = {},
           const ProcessIdentity& identity = own_identity());
  RunOwner(const RunOwner&) = delete;
  RunOwner& operator=(const RunOwner&) = delete;
  /// Gives the folder back, if it is still this run's.
  ~RunOwner();

  /// Throws FolderInUse or FolderGone if the folder is no longer this run's, as far as one look at
  /// the name tells. Meant to be called in every step: it allocates nothing where all is well. May
  /// be called from any thread.
  void require() const;

  /// While a Hold exists nobody takes the folder over, where locks work.
  class Hold {
   public:
    Hold(Hold&&) = default;
    Hold& operator=(Hold&&) = delete;

   private:
    friend class RunOwner;
    explicit Hold(FileDescriptor guard) : guard_(std::move(guard)) {}
    FileDescriptor guard_;
  };
  /// Reads owner.json again, as other hosts see it; throws as require() does, or StorageError. A
  /// process that holds the guard for longer than OwnerTiming::guard is reported, and not waited
  /// for. May be called from any thread.
  [[nodiscard]] Hold hold() const;
  /// Whether it is still this run's; false also where nobody can tell.
  [[nodiscard]] bool is_mine() const noexcept;

  /// Notes how the run ended, for last-run.json once the folder is given back.
  void note_end(std::string how) { end_ = std::move(how); }
  [[nodiscard]] const OwnerRecord& record() const { return record_; }

 private:
  struct Watch;
  enum class Step : std::uint8_t { kTaken, kWatch };
  [[nodiscard]] FileDescriptor lock_guard(std::chrono::milliseconds patience) const;
  void refuse_living() const;
  Step try_to_take(std::optional<Watch>& watch);
  void install(bool replaces);
  void settle() const;
  void require_anew() const;
  void beat();
  void give_back();
  [[noreturn]] void throw_loss() const;

  std::filesystem::path folder_;
  std::filesystem::path path_;
  OwnerTiming timing_;
  bool take_over_;
  ProcessIdentity identity_;
  OwnerRecord record_;
  FileDescriptor folder_file_;  ///< open, so that its inode is not given to a folder made later
  FileDescriptor file_;         ///< owner.json, locked
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::string end_;
  std::atomic<bool> is_lost_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false;
  std::thread heart_;
};

}  // namespace dstrain
