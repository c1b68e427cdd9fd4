// Real file systems that refuse: a full one, and a folder that may not be written to.
#include <cerrno>
#include <cstring>
#include <iostream>

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/skip.h"
#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// A small file system in memory, where this process may mount one.
class SmallDisk {
 public:
  SmallDisk(fs::path folder, const std::string& bytes) : folder_(std::move(folder)) {
    fs::create_directory(folder_);
    mounted_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, ("size=" + bytes).c_str()) == 0;
    error_ = errno;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) {
      ::umount(folder_.c_str());
    }
  }
  [[nodiscard]] bool mounted() const {
    if (!mounted_) {
      testing::skip(std::string("a tmpfs cannot be mounted: ") + strerror(error_));
    }
    return mounted_;
  }

 private:
  fs::path folder_;
  bool mounted_ = false;
  int error_ = 0;
};

/// An ordinary user for a while, where the tests run as root.
class OrdinaryUser {
 public:
  OrdinaryUser() : was_root_(::geteuid() == 0) {
    if (was_root_) {
      REQUIRE(::seteuid(65534) == 0);
    }
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;
  ~OrdinaryUser() {
    if (was_root_) {
      (void)!::seteuid(0);
    }
  }

 private:
  bool was_root_;
};

std::string failure_of_saving(const fs::path& folder, std::int64_t step, Cut cut, int salt) {
  try {
    save_toy(folder, step, cut, salt);
  } catch (const StorageError& error) {
    return error.what();
  }
  return "saved";
}

}  // namespace

TEST_CASE("a full disk fails the save with needed and free bytes; the last checkpoint stays",
          "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path disk_folder = folder.path() / "disk";
  const SmallDisk disk(disk_folder, "64k");
  if (!disk.mounted()) {
    return;
  }
  const Cut cut{.dp = 2};
  int salt = 1;
  std::string failure = "saved";
  while (failure == "saved" && salt < 20) {
    failure = failure_of_saving(disk_folder, salt, cut, salt);
    ++salt;
  }
  INFO("saves that fitted: " << salt - 2);
  REQUIRE(salt > 2);
  CHECK_THAT(failure, Contains(disk_folder.string()) && Contains("No space left on device") &&
                          Contains("it needs") && Contains("bytes are free"));
  const auto latest = CheckpointStore(disk_folder).latest();
  REQUIRE(latest.has_value());
  CHECK(holds_toy(*latest, cut, salt - 2));
  for (const auto& entry : fs::directory_iterator(disk_folder)) {
    CHECK_THAT(entry.path().filename().string(), !Contains(".tmp"));
  }
}

TEST_CASE("a folder that may not be written to fails the save with path and cause",
          "[checkpoint]") {
  const ScratchFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  const fs::path locked = folder.path() / "locked";
  fs::create_directory(locked);
  REQUIRE(::chmod(locked.c_str(), 0555) == 0);
  const OrdinaryUser user;
  CHECK_THAT(failure_of_saving(locked / "checkpoints", 1, {}, 1),
             Contains((locked / "checkpoints").string()) && Contains("Permission denied"));
}

TEST_CASE("a file in the place of the folder fails the save by name", "[checkpoint]") {
  const ScratchFolder folder;
  overwrite_file(folder.path() / "checkpoints", "not a folder");
  CHECK_THAT(failure_of_saving(folder.path() / "checkpoints", 1, {}, 1),
             Contains("a file has that name"));
}
