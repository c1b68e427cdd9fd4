// Runs whose disks fail: a real file system that is full, and data that are cut short under a rank.
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "tests/failure/tiny_run.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::Program;
using testing::TinyRun;

/// A disk of so many bytes for the run's output, where this process may mount one.
class SmallDisk {
 public:
  SmallDisk(const TinyRun& run, const std::string& bytes) : folder_(run.path("run")) {
    fs::create_directory(folder_);
    mounted_ = mount("tmpfs", folder_.c_str(), "tmpfs", 0, ("size=" + bytes).c_str()) == 0;
    if (!mounted_)
      testing::skip(fmt::format("a tmpfs cannot be mounted: {}", std::strerror(errno)));
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] bool is_mounted() const { return mounted_; }
  void grow_to(const std::string& bytes) const {
    REQUIRE(mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT, ("size=" + bytes).c_str()) == 0);
  }

 private:
  const std::string folder_;
  bool mounted_ = false;
};

/// It fills at a save, not at a line of metrics.jsonl: after the last save that fits there is room
/// for the lines of 150 more steps.
constexpr const char* kSmall = "3200k";

std::vector<std::string> flags(const std::string& on_failure) {
  return {"--set", "checkpoint.interval=50",
          "--set", "checkpoint.keep=100",
          "--set", "checkpoint.on_save_failure=" + on_failure};
}

std::vector<std::string> checkpoints_of(const TinyRun& run) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run.path("run/checkpoints")))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// F8
TEST_CASE("a disk that fills ends the run with 6, and a larger one continues from the last save",
          "[failure][checkpoint][slow]") {
  const TinyRun run;
  const SmallDisk disk(run, kSmall);
  if (!disk.is_mounted()) return;
  Program launch(run.launch(flags("stop")));
  const auto code = launch.wait(seconds{60});
  INFO(launch.err());
  CHECK(code == 6);
  CHECK_THAT(launch.err(), Contains("No space left on device") && Contains("it needs") &&
                               Contains("bytes are free") && Contains(run.path("run/checkpoints")));
  const std::vector<std::string> saved = checkpoints_of(run);
  REQUIRE(saved.size() >= 2);  // `latest` among them
  for (const std::string& name : saved)
    CHECK_THAT(name, !Contains("tmp"));  // of the save that failed nothing is left
  const std::string newest = saved.back();
  CHECK_THAT(newest, Catch::Matchers::StartsWith("step-"));

  disk.grow_to("64m");
  Program again(run.launch({"--set", "training.steps=" + std::to_string(run.steps() + 200)}));
  REQUIRE(again.wait(seconds{60}));
  INFO(again.err());
  CHECK(again.wait(seconds{0}) == 0);
  CHECK_THAT(again.err(), Contains("resumed at step ") && Contains(newest));
}

TEST_CASE("where saves may fail the run continues, and saves again once there is room",
          "[failure][checkpoint][slow]") {
  const TinyRun run;
  const SmallDisk disk(run, kSmall);
  if (!disk.is_mounted()) return;
  Program launch(run.launch(flags("continue")));
  CHECK(testing::becomes_true(
      [&] { return launch.err().find("could not be saved") != std::string::npos; }, seconds{60}));
  const size_t before = checkpoints_of(run).size();
  disk.grow_to("256m");
  CHECK(
      testing::becomes_true([&] { return checkpoints_of(run).size() > before + 1; }, seconds{30}));
  launch.signal(SIGINT);
  const auto code = launch.wait(seconds{30});
  INFO(launch.err());
  CHECK(code == 130);
  CHECK_THAT(launch.err(), Contains("the run continues and tries again in 50 steps"));
}

// F14
TEST_CASE("data that are cut short under a rank end the run with an error about it",
          "[failure][slow]") {
  const TinyRun run;
  Program launch(run.launch());
  REQUIRE(run.reaches_step(3));
  for (const auto& entry : fs::recursive_directory_iterator(run.path("data"))) {
    if (entry.path().extension() == ".bin") fs::resize_file(entry.path(), 0);
  }
  const auto code = launch.wait(seconds{30});
  INFO(launch.err());
  CHECK(code == 128 + SIGBUS);
  CHECK_THAT(launch.last_line(),
             Contains("SIGBUS") && Contains("a file that it reads is cut short"));
}

/// Commands that write, and what they say where they cannot.
struct Writing {
  std::vector<std::string> argv;
  std::string path;  ///< that the sentence names
};

std::vector<Writing> all_that_writes(const TinyRun& run, const std::string& to) {
  const std::string dstrain = testing::dstrain_binary();
  const std::string folder = "training.output_dir=" + to + "/run";
  return {{{dstrain, "prepare-data", "--input", run.path("text"), "--output", to + "/data"},
           to + "/data"},
          {{dstrain, "prepare-data", "--input", run.path("text"), "--output", to + "/pieces",
            "--train-sentencepiece", "300"},
           to + "/pieces"},
          {run.launch({"--set", folder, "--set", "training.steps=3"}), to + "/run"},
          {{dstrain, "convert-checkpoint", "--from", run.path("run"), "--to", to + "/converted"},
           to + "/converted"},
          {{dstrain, "convert-checkpoint", "--from", run.path("run"), "--to", to + "/recut",
            "--format", "dstrain"},
           to + "/recut"}};
}

void make_checkpoint(const TinyRun& run) {
  Program launch(run.launch({"--set", "training.steps=2"}));
  REQUIRE(launch.wait(seconds{60}) == 0);
}

// F56
TEST_CASE("a limit on the size of files ends whatever writes with 6, and is named",
          "[failure][checkpoint]") {
  const TinyRun run;
  make_checkpoint(run);
  const rlimit small{.rlim_cur = 10240, .rlim_max = 10240};
  for (const Writing& writing : all_that_writes(run, run.path("to"))) {
    INFO(fmt::format("{}", fmt::join(writing.argv, " ")));
    Program program(writing.argv, {}, [&] {
      setrlimit(RLIMIT_FSIZE, &small);
      std::signal(SIGXFSZ, SIG_DFL);
    });
    const auto code = program.wait(seconds{60});
    INFO(program.err());
    CHECK(code == 6);
    CHECK_THAT(program.err(), Contains("cannot write " + writing.path) &&
                                  Contains("File too large") &&
                                  Contains("files of this process may have 10240 bytes"));
  }
}

// F57
TEST_CASE("a read-only file system ends whatever writes with 6, at the start", "[failure]") {
  const TinyRun run;
  make_checkpoint(run);
  const std::string to = run.path("to");
  fs::create_directory(to);
  if (mount("tmpfs", to.c_str(), "tmpfs", MS_RDONLY, "size=1m") != 0) {
    testing::skip(fmt::format("a tmpfs cannot be mounted: {}", std::strerror(errno)));
    return;
  }
  for (const Writing& writing : all_that_writes(run, to)) {
    INFO(fmt::format("{}", fmt::join(writing.argv, " ")));
    Program program(writing.argv);
    const auto code = program.wait(seconds{60});
    INFO(program.err());
    CHECK(code == 6);
    CHECK_THAT(program.err(), Contains(writing.path) && Contains("Read-only file system"));
  }
  umount2(to.c_str(), MNT_DETACH);
}

TEST_CASE("checkpoints that become read-only under a run end it with 6", "[failure][checkpoint]") {
  const TinyRun run;
  const std::string folder = run.path("run/checkpoints");
  fs::create_directories(folder);
  if (mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    testing::skip(fmt::format("a folder cannot be mounted on itself: {}", std::strerror(errno)));
    return;
  }
  Program launch(run.launch({"--set", "checkpoint.interval=20"}));
  CHECK(testing::becomes_true([&] { return fs::exists(folder + "/step-00000020"); }, seconds{30}));
  // Refused while a file there is open for writing: between two saves none is.
  CHECK(testing::becomes_true(
      [&] {
        return mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) ==
               0;
      },
      seconds{10}));
  const auto code = launch.wait(seconds{30});
  INFO(launch.err());
  CHECK(code == 6);
  CHECK_THAT(launch.err(), Contains(folder) && Contains("Read-only file system"));
  umount2(folder.c_str(), MNT_DETACH);
}

TEST_CASE("results that a full disk does not take end a command with 6", "[failure]") {
  for (const char* command : {"schema", "help launch", "estimate-memory configs/quickstart.json"}) {
    INFO(command);
    Program program({"/bin/sh", "-c", testing::dstrain_binary() + " " + command + " > /dev/full"});
    const auto code = program.wait(seconds{10});
    INFO(program.err());
    CHECK(code == 6);
    CHECK_THAT(program.err(), Contains("No space left on device"));
  }
}

}  // namespace
}  // namespace dstrain
