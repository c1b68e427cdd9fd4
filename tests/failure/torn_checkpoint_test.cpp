// A save that dies, before every single change it makes to the disk: each time the folder must
// still hold a whole checkpoint, the old or the new one, never a mixture, and the next save must
// clean up. A death comes in two kinds. Killed: what was written stays. Power lost: what was not
// yet synced is gone, which this test plays by cutting unsynced files and undoing unsynced renames.
#include <atomic>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
namespace fs = std::filesystem;

namespace {

constexpr int kDied = 77;
constexpr const char* kTokenizer = "all of a tokenizer's model";

/// Saves in a child process that dies just before its `fatal`-th change of the disk (counted over
/// its ranks, the changes of which are logged). True if it died, false if the save ended before.
bool save_and_die(const fs::path& folder,
                  std::int64_t step,
                  checkpoint_test::Cut cut,
                  int salt,
                  std::int64_t keep,
                  int fatal,
                  const fs::path& log) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int log_file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    std::atomic<int> changes = 0;
    const DiskProbe probe = [&](const DiskChange& change) {
      if (++changes >= fatal) {
        ::_exit(kDied);
      }
      const std::string line = std::to_string(static_cast<int>(change.kind)) + " " +
                               change.path.string() + " " + change.target.string() + "\n";
      (void)!::write(log_file, line.data(), line.size());
    };
    try {
      test::thread_world(cut.dp, [&](Rendezvous& rendezvous) {
        std::vector<int> members;
        for (int rank = 0; rank < cut.dp; ++rank) {
          members.push_back(rank);
        }
        const auto world = rendezvous.make_group("world", members);
        ToyState share = toy_share(world->rank(), cut);
        share.fill(salt);
        CheckpointStore store(folder, probe);
        Companions companions;
        companions.add("tokenizer.model", kTokenizer);
        store.set_companions(companions);
        store.save(training_state(step), share.tensors(), keep, *world);
        return true;
      });
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE((WEXITSTATUS(status) == kDied || WEXITSTATUS(status) == 0));
  return WEXITSTATUS(status) == kDied;
}

/// Applies what a file system without any ordering of its own may do to the changes in the log:
/// files that were not synced lose their second half, renames whose folder was not synced did not
/// happen. `latest` had the content given before.
void lose_power(const fs::path& log, const std::string& old_latest) {
  std::set<std::string> unsynced;
  std::vector<std::pair<fs::path, fs::path>> renames;
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int kind = 0;
    std::string path;
    std::string target;
    words >> kind >> path >> target;
    switch (static_cast<DiskChange::Kind>(kind)) {
      case DiskChange::Kind::kCreateFile:
      case DiskChange::Kind::kWrite:
        unsynced.insert(path);
        break;
      case DiskChange::Kind::kSyncFile:
        unsynced.erase(path);
        break;
      case DiskChange::Kind::kSyncFolder:
        std::erase_if(renames,
                      [&](const auto& rename) { return rename.second.parent_path() == path; });
        break;
      case DiskChange::Kind::kRename: {
        renames.emplace_back(path, target);
        std::set<std::string> moved;
        for (const std::string& file : unsynced) {
          moved.insert(file.starts_with(path) ? target + file.substr(path.size()) : file);
        }
        unsynced = moved;
        break;
      }
      default:
        break;
    }
  }
  for (const std::string& file : unsynced) {
    if (fs::exists(file)) {
      fs::resize_file(file, fs::file_size(file) / 2);
    }
  }
  for (auto rename = renames.rbegin(); rename != renames.rend(); ++rename) {
    std::error_code ignored;
    fs::rename(rename->second, rename->first, ignored);
    if (rename->second.filename() == "latest" && !old_latest.empty()) {
      overwrite_file(rename->second, old_latest);
    }
  }
}

struct Scenario {
  std::vector<std::int64_t> saved;  ///< steps saved before; the value of each is its own salt
  std::int64_t step;
  std::int64_t keep;
  int ranks;
};

/// Dies at every point of saving `scenario.step` with salt 9. Returns how often it died.
int survive_every_death(const Scenario& scenario, bool power_lost) {
  const checkpoint_test::Cut cut{.dp = scenario.ranks};
  for (int fatal = 1;; ++fatal) {
    CAPTURE(fatal, power_lost, scenario.step, scenario.keep);
    const ScratchFolder scratch;
    const fs::path folder = scratch.path() / "checkpoints";
    for (const std::int64_t step : scenario.saved) {
      save_toy(folder, step, cut, static_cast<int>(step));
    }
    const std::string old_latest = read_file(folder / "latest");
    const bool died =
        save_and_die(folder, scenario.step, cut, 9, scenario.keep, fatal, scratch.path() / "log");
    if (power_lost) {  // also after a save that returned: then it must be there
      lose_power(scratch.path() / "log", old_latest);
    }
    const CheckpointStore store(folder);
    const auto latest = store.latest();
    if (!latest) {
      REQUIRE(scenario.saved.empty());
    } else {
      ToyState nothing;
      const std::int64_t step = CheckpointStore::load(*latest, nothing.tensors()).step;
      const bool is_new = step == scenario.step && holds_toy(*latest, cut, 9);
      const bool is_old = !scenario.saved.empty() && step == scenario.saved.back() &&
                          holds_toy(*latest, cut, static_cast<int>(step));
      REQUIRE((is_new || is_old));
      REQUIRE((died || is_new));
      if (is_new) {
        REQUIRE(read_file(*latest / "tokenizer.model") == kTokenizer);
      }
    }
    // The run goes on: the next save succeeds and leaves nothing of the dead one.
    save_toy(folder, 50, cut, 5, 1);
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      names.insert(entry.path().filename());
    }
    REQUIRE(names == std::set<std::string>{"latest", "step-00000050"});
    REQUIRE(holds_toy(store.latest().value(), cut, 5));
    if (!died) {
      return fatal - 1;
    }
  }
}

}  // namespace

TEST_CASE("a checkpoint killed or cut off from power before any change stays whole",
          "[failure][checkpoint]") {
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::err);  // each death ends in a warning
  const bool power_lost = GENERATE(false, true);
  // A first save, a second, one that removes an outdated checkpoint, one that replaces the last.
  CHECK(survive_every_death({.saved = {}, .step = 3, .keep = 2, .ranks = 1}, power_lost) >= 12);
  CHECK(survive_every_death({.saved = {2}, .step = 3, .keep = 2, .ranks = 1}, power_lost) >= 12);
  CHECK(survive_every_death({.saved = {2}, .step = 3, .keep = 1, .ranks = 2}, power_lost) >= 20);
  CHECK(survive_every_death({.saved = {1, 2, 3}, .step = 4, .keep = 2, .ranks = 1}, power_lost) >=
        20);
  CHECK(survive_every_death({.saved = {3}, .step = 3, .keep = 1, .ranks = 2}, power_lost) >= 20);
  spdlog::set_level(level);
}
