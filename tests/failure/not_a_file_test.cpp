// A pipe, a device without end, a socket or a folder lies where dstrain reads a file: it says so
// and ends, and neither waits for a writer nor reads for ever.
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "engine/base/file_descriptor.h"
#include "tests/failure/tiny_run.h"

namespace dstrain {
namespace {

using std::chrono::seconds;
using testing::Program;
using testing::TinyRun;
namespace fs = std::filesystem;

struct Thing {
  std::string name;  ///< as the sentence has it
  std::function<void(const std::string& path)> put;
};

const std::vector<Thing> kThings = {
    {"a pipe", [](const std::string& path) { REQUIRE(mkfifo(path.c_str(), 0600) == 0); }},
    {"a device", [](const std::string& path) { fs::create_symlink("/dev/zero", path); }},
    {"a socket",
     [](const std::string& path) {
       const FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM, 0));
       sockaddr_un address{};
       address.sun_family = AF_UNIX;
       REQUIRE(path.size() < sizeof address.sun_path);
       std::memcpy(address.sun_path, path.c_str(), path.size());
       REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
     }},
    {"folder", [](const std::string& path) { fs::create_directory(path); }},
};

/// In the place of whatever was there.
void put(const Thing& thing, const std::string& path) {
  fs::remove_all(path);
  thing.put(path);
}

void is_refused(const std::vector<std::string>& argv, const std::string& path, int exit_code) {
  Program program(argv);
  const auto code = program.wait(seconds{20});
  INFO(path << ": " << program.err());
  REQUIRE(code.has_value());
  CHECK(*code == exit_code);
  CHECK_THAT(program.err(), Catch::Contains(fs::path(path).filename().string()) &&
                                (Catch::Contains("is a pipe") || Catch::Contains("is a device") ||
                                 Catch::Contains("is a socket") || Catch::Contains("folder")));
}

TEST_CASE("what is no file is refused in the place of an input", "[failure][files]") {
  const TinyRun run;
  const std::vector<std::string> few = {"--set", "training.steps=3"};
  const auto at = GENERATE(range(std::size_t{0}, std::size_t{4}));
  const Thing& thing = kThings[at];
  INFO(thing.name);
  const std::string other = run.path("other");
  put(thing, other);
  is_refused({testing::dstrain_binary(), "launch", other}, other, 2);
  is_refused(run.launch({"--hostfile", other}), other, 2);
  is_refused(run.launch({"--env-file", other}), other, 2);
  is_refused({testing::dstrain_binary(), "generate", "--checkpoint", other, "--prompt-file", other},
             other, 2);
  const std::string data = run.path("data/train.bin");
  put(thing, data);
  is_refused(run.launch(few), data, 2);
}

TEST_CASE("what is no file is refused in the place of what a run has saved", "[failure][files]") {
  const TinyRun run;
  const std::vector<std::string> some = {"--set", "training.steps=4", "--set",
                                         "checkpoint.interval=2"};
  const std::vector<std::string> more = {"--set", "training.steps=6", "--set",
                                         "checkpoint.interval=2"};
  const auto at = GENERATE(range(std::size_t{0}, std::size_t{4}));
  const Thing& thing = kThings[at];
  INFO(thing.name);
  Program first(run.launch(some));
  REQUIRE(first.wait(seconds{30}) == 0);
  const std::string latest = run.path("run/checkpoints/latest");
  const std::string name = run.read("run/checkpoints/latest");
  put(thing, latest);
  is_refused(run.launch(more), latest, 5);
  fs::remove_all(latest);
  std::ofstream(latest) << name;
  const std::string manifest = run.path("run/checkpoints/step-00000004/manifest.json");
  put(thing, manifest);
  std::vector<std::string> from_it = more;
  from_it.insert(from_it.end(),
                 {"--set", "checkpoint.resume=" + fs::path(manifest).parent_path().string()});
  is_refused(run.launch(from_it), manifest, 5);
}

}  // namespace
}  // namespace dstrain
