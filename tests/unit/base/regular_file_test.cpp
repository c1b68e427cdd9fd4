// Regular files are read whole; whatever else has a path is named, and never waited for.
#include "engine/base/regular_file.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace dstrain {
namespace {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "dstrain_base_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string path(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

TEST_CASE("a regular file is read to its last byte, and not beyond the bound", "[base]") {
  const Folder folder;
  const std::string text(3 << 20, 'x');
  std::ofstream(folder.path("file")) << text;
  CHECK(read_regular_file(folder.path("file")).text == text);
  CHECK(open_regular_file(folder.path("file")).bytes == 3 << 20);
  const FileText bounded = read_regular_file(folder.path("file"), 100);
  CHECK(bounded.text.empty());
  CHECK(bounded.why == "has 3145728 bytes, but 100 are the most allowed");
  CHECK_FALSE(read_regular_file("/proc/self/status").text.empty());  // whose size is 0
}

TEST_CASE("what is no regular file is named and not waited for", "[base]") {
  const Folder folder;
  REQUIRE(mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  CHECK(open_regular_file(folder.path("pipe")).why == "is a pipe, not a file");
  CHECK_FALSE(open_regular_file(folder.path("pipe")).file);
  // Nor does a user's own pipe excuse this one, which nobody writes to.
  CHECK(read_regular_file(folder.path("pipe"), kMostFileBytes, MayBePipe::kYes).why ==
        "is a pipe, not a file");
  CHECK(open_regular_file(folder.path("")).why == "is a folder, not a file");
  CHECK(open_regular_file("/dev/zero").why == "is a device, not a file");
  const OpenedFile none = open_regular_file(folder.path("none"));
  CHECK(none.is_missing);
  CHECK(none.why == "No such file or directory");
}

TEST_CASE("a pipe that this process was given is read to its end", "[base]") {
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
  const FileDescriptor reader(ends[0]);
  {
    const FileDescriptor writer(ends[1]);
    REQUIRE(write(writer.get(), "hosts", 5) == 5);
  }
  const std::string path = "/dev/fd/" + std::to_string(reader.get());
  CHECK(read_regular_file(path).why == "is a pipe, not a file");
  CHECK(read_regular_file(path, kMostFileBytes, MayBePipe::kYes).text == "hosts");
}

TEST_CASE("a descriptor that closes leaves errno as it is", "[base]") {
  FileDescriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  REQUIRE(file);
  const int number = file.get();
  close(number);
  errno = ENOSPC;
  file.reset();  // fails with EBADF
  CHECK(errno == ENOSPC);
  CHECK_FALSE(file);
}

}  // namespace
}  // namespace dstrain
