#include "engine/checkpoint/owner/run_owner.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/checkpoint/owner/owner_state.h"
#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

namespace {

/// A hundredth of what a run waits.
constexpr OwnerTiming kQuick{.beat = milliseconds{20},
                             .stale = milliseconds{300},
                             .settle = milliseconds{10},
                             .guard = milliseconds{200}};
const OwnerClaim kTakeOver{.take_over = true};

/// The id of a process that has ended and been waited for.
pid_t dead_pid() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
  return pid;
}

OwnerRecord record_of(const ProcessIdentity& process) {
  return {.token = random_name(), .job = "other", .process = process, .since = utc_now()};
}

/// Writes owner.json as a crash, or a machine whose locks are not visible here, leaves it.
void leave_owner_file(const fs::path& folder, const std::string& text) {
  overwrite_file(folder / kOwnerFile, text);
}
void leave_owner_file(const fs::path& folder, const OwnerRecord& record) {
  leave_owner_file(folder, to_json(record).dump());
}

ProcessIdentity on_another_machine() {
  ProcessIdentity process = own_identity();
  process.host = "elsewhere";
  process.boot_id = "00000000-0000-0000-0000-000000000000";
  return process;
}

bool owns(const fs::path& folder, const RunOwner& owner) {
  const auto file = open_owner_file(folder / kOwnerFile);
  return file && file->record && file->record->token == owner.record().token;
}

/// Milliseconds that it takes to get the folder.
double ms_to_take(const fs::path& folder) {
  const auto begin = std::chrono::steady_clock::now();
  const RunOwner owner(folder, {}, kQuick);
  CHECK(owns(folder, owner));
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace

TEST_CASE("a folder belongs to one run, and to nobody after its end", "[checkpoint][owner]") {
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "runs" / "one";
  {
    RunOwner first(folder, {.job = "first"}, kQuick);
    CHECK(owns(folder, first));
    CHECK_THROWS_WITH(RunOwner(folder, {}, kQuick),
                      Contains("belongs to pid " + std::to_string(getpid())) &&
                          Contains("on host " + own_identity().host) &&
                          Contains("there since 20") && Contains("--take-over"));
    CHECK_THROWS_AS(RunOwner(folder, {.job = "second"}, kQuick), FolderInUse);
    first.require();
    CHECK(first.is_mine());
    first.note_end("finished at step 7");
  }
  CHECK_FALSE(fs::exists(folder / kOwnerFile));
  const auto last = open_owner_file(folder / kLastRunFile);
  REQUIRE((last && last->record && last->record->end));
  CHECK(last->record->end->how == "finished at step 7");
  CHECK(last->record->job == "first");
  const RunOwner second(folder, {}, kQuick);
  CHECK(owns(folder, second));
  for (const auto& entry : fs::directory_iterator(folder)) {
    CHECK(entry.path().extension() != ".tmp");
  }
}

TEST_CASE("an owner record survives its text, and nothing else passes for one",
          "[checkpoint][owner]") {
  OwnerRecord record = record_of(own_identity());
  record.restart = 3;
  record.role = OwnerRole::kLauncher;
  record.has_lock = true;
  record.end = RunEnd{utc_now(), "failed: \"x\""};
  CHECK(parse_owner_record(to_json(record).dump()) == record);
  const std::string text = to_json(record).dump();
  for (std::size_t length = 0; length < text.size(); ++length) {
    CHECK_FALSE(parse_owner_record(text.substr(0, length)));
  }
  for (const char* other : {"null", "[]", "{}", "7", "{\"token\": 7}"}) {
    CHECK_FALSE(parse_owner_record(other));
  }
  record.process.host = "evil\x1b[2J\nhost";
  CHECK(parse_owner_record(to_json(record).dump())->process.host == "evil?[2J?host");
}

TEST_CASE("a dead owner of this machine is replaced at once", "[checkpoint][owner]") {
  const ScratchFolder folder;
  ProcessIdentity process = own_identity();
  SECTION("its process is gone") {
    process.pid = dead_pid();
  }
  SECTION("its process id is another's by now") {
    process.start_ticks -= 1;
  }
  SECTION("the machine was started again") {
    process.boot_id = "00000000-0000-0000-0000-000000000000";
    if (process.host == "localhost") return;
  }
  SECTION("it was in another container, and its lock is free") {
    process.pid_namespace = "pid:[1]";
  }
  OwnerRecord record = record_of(process);
  record.has_lock = true;
  leave_owner_file(folder.path(), record);
  CHECK(ms_to_take(folder.path()) < 0.5 * static_cast<double>(kQuick.stale.count()));
}

TEST_CASE("a killed owner's lock ends with it", "[checkpoint][owner]") {
  const ScratchFolder folder;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const RunOwner owner(folder.path(), {}, kQuick);
    const bool told = write(ready[1], "x", 1) == 1;
    pause();
    _exit(told ? 0 : 1);
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK_THROWS_AS(RunOwner(folder.path(), {}, kQuick), FolderInUse);
  kill(child, SIGSTOP);  // stopped is not dead, however long no heartbeat comes
  std::this_thread::sleep_for(kQuick.stale);
  CHECK_THROWS_AS(RunOwner(folder.path(), {}, kQuick), FolderInUse);
  kill(child, SIGKILL);
  while (start_ticks_of(child))
    std::this_thread::yield();  // of its threads the last may be there
  CHECK(ms_to_take(folder.path()) < 0.5 * static_cast<double>(kQuick.stale.count()));
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("a living process counts, also where its lock was lost", "[checkpoint][owner]") {
  const ScratchFolder folder;
  leave_owner_file(folder.path(), record_of(own_identity()));
  CHECK_THROWS_WITH(RunOwner(folder.path(), {}, kQuick), Contains("of this machine runs"));
}

TEST_CASE("another machine's owner is judged by its heartbeat", "[checkpoint][owner]") {
  const ScratchFolder folder;
  const fs::path path = folder.path() / kOwnerFile;
  ProcessIdentity foreign = on_another_machine();
  SECTION("that stands still: dead, after a while") {
    SECTION("whatever time its file has") {
      leave_owner_file(folder.path(), record_of(foreign));
      const timespec future[2] = {{.tv_sec = 4'000'000'000, .tv_nsec = 0},
                                  {.tv_sec = 4'000'000'000, .tv_nsec = 0}};
      REQUIRE(utimensat(AT_FDCWD, path.c_str(), future, 0) == 0);
    }
    SECTION("a machine that nobody named is another one") {
      foreign.host = "localhost";
      leave_owner_file(folder.path(), record_of(foreign));
    }
    SECTION("a damaged record counts as another machine's") {
      leave_owner_file(folder.path(), "{\"token\": \"half a rec");
    }
    SECTION("and so does an empty one") {
      leave_owner_file(folder.path(), "");
    }
    CHECK(ms_to_take(folder.path()) >= static_cast<double>(kQuick.stale.count()));
  }
  SECTION("that continues: alive") {
    leave_owner_file(folder.path(), record_of(foreign));
    const timespec past[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
    REQUIRE(utimensat(AT_FDCWD, path.c_str(), past, 0) == 0);
    std::atomic<bool> done = false;
    std::thread heart([&] {
      for (int i = 2; !done; ++i) {  // by a clock that is decades late
        const timespec beat[2] = {{.tv_sec = i, .tv_nsec = 0}, {.tv_sec = i, .tv_nsec = 0}};
        utimensat(AT_FDCWD, path.c_str(), beat, 0);
        std::this_thread::sleep_for(kQuick.beat);
      }
    });
    CHECK_THROWS_WITH(RunOwner(folder.path(), {}, kQuick),
                      Contains("on host elsewhere") && Contains("its heartbeat continues"));
    done = true;
    heart.join();
  }
}

TEST_CASE("an owner renews its heartbeat beside whatever it does", "[checkpoint][owner]") {
  const ScratchFolder folder;
  const RunOwner owner(folder.path(), {}, kQuick);
  const auto before = open_owner_file(folder.path() / kOwnerFile)->beat;
  std::this_thread::sleep_for(5 * kQuick.beat);
  const auto after = open_owner_file(folder.path() / kOwnerFile)->beat;
  CHECK((after.tv_sec > before.tv_sec || after.tv_nsec > before.tv_nsec));
}

TEST_CASE("what cannot be an owner's file is refused, not waited for", "[checkpoint][owner]") {
  const ScratchFolder folder;
  const fs::path path = folder.path() / kOwnerFile;
  SECTION("a FIFO") {
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    CHECK_THROWS_WITH(RunOwner(folder.path(), {}, kQuick), Contains("owner.json is not a regular"));
  }
  SECTION("a folder") {
    fs::create_directory(path);
    CHECK_THROWS_WITH(RunOwner(folder.path(), {}, kQuick), Contains("owner.json is not a regular"));
  }
  SECTION("a FIFO in the lock's place") {
    REQUIRE(mkfifo((folder.path() / ".owner.lock").c_str(), 0600) == 0);
    CHECK_THROWS_WITH(RunOwner(folder.path(), {}, kQuick), Contains(".owner.lock is not a reg"));
  }
}

TEST_CASE("a folder that this user may not write to is an error of storage",
          "[checkpoint][owner]") {
  const ScratchFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec |
                                     fs::perms::others_read | fs::perms::others_exec);
  constexpr uid_t kNobody = 65534;
  const pid_t child = fork();
  if (child == 0) {
    if (getuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(9);
    try {
      const RunOwner owner(folder.path(), {}, kQuick);
    } catch (const StorageError& error) {
      _exit(std::string(error.what()).find("Permission denied") == std::string::npos ? 8 : 0);
    } catch (...) {
      _exit(7);
    }
    _exit(6);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) ? WEXITSTATUS(status) : -1) == 0);
  fs::permissions(folder.path(), fs::perms::owner_all);
}

TEST_CASE("of many that begin at once one has the folder", "[checkpoint][owner]") {
  const ScratchFolder folder;
  const bool after_a_crash = GENERATE(false, true);
  if (after_a_crash) {
    ProcessIdentity dead = own_identity();
    dead.pid = dead_pid();
    leave_owner_file(folder.path(), record_of(dead));
  }
  constexpr int kStarts = 24;
  std::atomic<int> taken = 0;
  std::atomic<int> refused = 0;
  std::vector<std::unique_ptr<RunOwner>> owners(kStarts);  // they keep what they get
  std::vector<std::thread> starts;
  for (int i = 0; i < kStarts; ++i) {
    starts.emplace_back([&, i] {
      try {
        OwnerTiming patient = kQuick;
        patient.guard = std::chrono::seconds{10};
        owners[static_cast<std::size_t>(i)] =
            std::make_unique<RunOwner>(folder.path(), OwnerClaim{}, patient);
        ++taken;
      } catch (const FolderInUse&) {
        ++refused;
      }
    });
  }
  for (std::thread& start : starts)
    start.join();
  CHECK(taken == 1);
  CHECK(refused == kStarts - 1);
}

TEST_CASE("a folder that is taken over is the new run's alone", "[checkpoint][owner]") {
  const ScratchFolder folder;
  auto first = std::make_unique<RunOwner>(folder.path(), OwnerClaim{}, kQuick);
  const RunOwner second(folder.path(), kTakeOver, kQuick);
  CHECK(owns(folder.path(), second));
  CHECK_FALSE(first->is_mine());
  CHECK_THROWS_WITH(first->require(),
                    Contains("was taken over by pid ") && Contains("writes nothing more"));
  CHECK_THROWS_AS(first->hold(), FolderInUse);
  first->note_end("failed: it was taken over");
  first.reset();
  CHECK(owns(folder.path(), second));
  CHECK_FALSE(fs::exists(folder.path() / kLastRunFile));
  second.require();
  CHECK_THROWS_AS(RunOwner(folder.path(), {}, kQuick), FolderInUse);
}

TEST_CASE("nobody takes a folder over in the midst of a commit", "[checkpoint][owner]") {
  const ScratchFolder folder;
  const RunOwner first(folder.path(), {}, kQuick);
  OwnerTiming patient = kQuick;
  patient.guard = std::chrono::seconds{10};
  std::atomic<bool> is_taken = false;
  std::thread taker;
  {
    const RunOwner::Hold hold = first.hold();
    taker = std::thread([&] {
      const RunOwner second(folder.path(), kTakeOver, patient);
      is_taken = true;
    });
    std::this_thread::sleep_for(milliseconds{50});
    CHECK_FALSE(is_taken);
    CHECK(first.is_mine());
  }
  taker.join();
  CHECK(is_taken);

  SECTION("unless it stands: then it is reported and taken") {
    const RunOwner third(folder.path(), {}, kQuick);
    const RunOwner::Hold hold = third.hold();
    const RunOwner fourth(folder.path(), kTakeOver, kQuick);
    CHECK(owns(folder.path(), fourth));
    CHECK_FALSE(third.is_mine());
  }
}

TEST_CASE("a job's next attempt has the folder without waiting for the one before",
          "[checkpoint][owner]") {
  const ScratchFolder folder;
  const auto attempt = [&](int restart, OwnerRole role) {
    return std::make_unique<RunOwner>(
        folder.path(), OwnerClaim{.job = "job", .restart = restart, .role = role}, kQuick);
  };
  const auto launcher = attempt(0, OwnerRole::kLauncher);
  const auto rank0 = attempt(0, OwnerRole::kRank0);
  CHECK(owns(folder.path(), *rank0));
  CHECK_THROWS_AS(attempt(0, OwnerRole::kRank0), FolderInUse);
  CHECK_THROWS_AS(attempt(0, OwnerRole::kLauncher), FolderInUse);
  const auto restarted = attempt(1, OwnerRole::kRank0);
  CHECK(owns(folder.path(), *restarted));
  CHECK_THROWS_AS(rank0->require(), FolderInUse);
  CHECK_THROWS_AS(attempt(0, OwnerRole::kRank0), FolderInUse);
  CHECK_THROWS_AS(RunOwner(folder.path(), {.job = "other", .restart = 9}, kQuick), FolderInUse);
}

TEST_CASE("an owner whose folder is taken away stops", "[checkpoint][owner]") {
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  const RunOwner owner(folder, {}, kQuick);
  SECTION("deleted") {
    fs::remove_all(folder);
    CHECK_THROWS_WITH(owner.require(), Contains("run was deleted or moved away"));
    CHECK_THROWS_AS(owner.hold(), FolderGone);
    CHECK_FALSE(fs::exists(folder));  // nor made again
  }
  SECTION("replaced") {
    fs::remove_all(folder);
    fs::create_directory(folder);
    CHECK_THROWS_WITH(owner.require(), Contains("replaced by another folder"));
    CHECK_THROWS_AS(owner.hold(), FolderGone);
    CHECK(fs::is_empty(folder));
  }
  SECTION("renamed") {
    fs::rename(folder, scratch.path() / "other");
    CHECK_THROWS_AS(owner.require(), FolderGone);
  }
  SECTION("its record removed by hand") {
    fs::remove(folder / kOwnerFile);
    CHECK_THROWS_WITH(owner.require(), Contains("owner.json") && Contains("has been removed"));
    CHECK_THROWS_AS(owner.hold(), FolderInUse);
  }
}

TEST_CASE("a save does not make a run's folder anew that was deleted while it began",
          "[checkpoint][owner]") {
  const ScratchFolder scratch;
  const fs::path run = scratch.path() / "run";
  const RunOwner owner(run, {}, kQuick);
  const fs::path checkpoints = run / "checkpoints";
  fs::create_directories(checkpoints / ".step-00000003.tmp");
  const auto outcomes = test::thread_world(1, [&](Rendezvous& rendezvous) {
    const auto world = rendezvous.make_group("world", std::vector<int>{0});
    ToyState share = toy_share(0, {.dp = 1});
    share.fill(2);
    CheckpointStore store(checkpoints, [&](const DiskChange& change) {
      if (change.kind == DiskChange::Kind::kRemove) {
        fs::remove_all(run);
      }
    });
    store.set_owner(&owner);
    try {
      store.save(training_state(6), share.tensors(), 2, *world);
    } catch (const StorageError& error) {
      return std::string(error.what());
    }
    return std::string("saved");
  });
  CHECK_THAT(outcomes[0], Contains("cannot create the folder"));
  CHECK_FALSE(fs::exists(run));
}

TEST_CASE("a checkpoint is not committed to a folder that was taken over meanwhile",
          "[checkpoint][owner]") {
  const ScratchFolder folder;
  const fs::path checkpoints = folder.path() / "checkpoints";
  save_toy(checkpoints, 5, {}, 1);
  const std::string latest = read_file(checkpoints / "latest");
  RunOwner first(folder.path(), {}, kQuick);
  std::unique_ptr<RunOwner> second;
  bool is_gone = false;
  const std::string at = GENERATE("manifest.json", "rank-00000.safetensors");
  const bool deletes = GENERATE(false, true);
  const auto outcomes = test::thread_world(2, [&](Rendezvous& rendezvous) {
    const auto world = rendezvous.make_group("world", std::vector<int>{0, 1});
    ToyState share = toy_share(world->rank(), {.dp = 2});
    share.fill(2);
    CheckpointStore store(checkpoints, [&](const DiskChange& change) {
      if (world->rank() != 0 || change.kind != DiskChange::Kind::kSyncFile ||
          change.path.filename() != at || is_gone) {
        return;
      }
      is_gone = true;
      if (deletes) {
        fs::remove_all(folder.path());
      } else {
        second = std::make_unique<RunOwner>(folder.path(), kTakeOver, kQuick);
      }
    });
    if (world->rank() == 0) store.set_owner(&first);
    try {
      store.save(training_state(6), share.tensors(), 2, *world);
    } catch (const FolderInUse& error) {
      return "in use: " + std::string(error.what());
    } catch (const FolderGone& error) {
      return "gone: " + std::string(error.what());
    } catch (const StorageError& error) {
      return "storage: " + std::string(error.what());
    }
    return std::string("saved");
  });
  CHECK(outcomes[0] == outcomes[1]);
  CHECK(is_gone);
  if (deletes) {
    CHECK_THAT(outcomes[0], Contains("gone: ") || Contains("storage: "));
    CHECK_FALSE(fs::exists(checkpoints / "step-00000006"));
  } else {
    CHECK_THAT(outcomes[0], Contains("in use: ") && Contains("was taken over by"));
    CHECK(read_file(checkpoints / "latest") == latest);
    CHECK_FALSE(fs::exists(checkpoints / "step-00000006"));
    CHECK(holds_toy(checkpoints / "step-00000005", {.dp = 2}, 1));
  }
}
