#include "kernels/cuda/algorithm_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

namespace dstrain {
namespace {

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw std::runtime_error(fmt::format("{}, where algorithms of matrix products are kept, {}: {}",
                                       path, what, std::strerror(errno)));
}

/// Holds the lock, for which others wait while this exists.
class Lock {
 public:
  Lock(int fd, const std::string& path) : fd_(fd) {
    int status = 0;
    do {
      status = ::flock(fd_, LOCK_EX);
    } while (status != 0 && errno == EINTR);
    if (status != 0) fail(path, "cannot be locked");
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { (void)::flock(fd_, LOCK_UN); }

 private:
  int fd_;
};

std::string read_from(int fd, std::int64_t offset, const std::string& path) {
  std::string text;
  std::string piece(1 << 16, '\0');
  for (;;) {
    const ssize_t bytes =
        ::pread(fd, piece.data(), piece.size(), offset + static_cast<std::int64_t>(text.size()));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) fail(path, "cannot be read");
    if (bytes == 0) return text;
    text.append(piece, 0, static_cast<std::size_t>(bytes));
  }
}

}  // namespace

AlgorithmFile::AlgorithmFile(std::string path, std::string device)
    : path_(std::move(path)), device_(std::move(device)) {
  open();
  try {
    const Lock lock(fd_, path_);
    read_on();
  } catch (...) {
    (void)::close(fd_);
    throw;
  }
}

AlgorithmFile::~AlgorithmFile() {
  (void)::close(fd_);
}

void AlgorithmFile::open() {
  std::error_code ignored;  // open says what is wrong
  if (const auto folder = std::filesystem::path(path_).parent_path(); !folder.empty()) {
    std::filesystem::create_directories(folder, ignored);
  }
  constexpr mode_t kReadableByAll = 0644;
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kReadableByAll);
  if (fd_ < 0) fail(path_, "cannot be opened for reading and writing");
}

ChosenAlgorithm AlgorithmFile::choose(const std::string& product,
                                      const std::function<ChosenAlgorithm()>& decide) {
  if (find(product) == nullptr) {
    const Lock lock(fd_, path_);
    read_on();
  }
  if (find(product) == nullptr) {
    const ChosenAlgorithm own = decide();
    const Lock lock(fd_, path_);
    read_on();
    if (find(product) == nullptr) append(product, own);
  }
  return *find(product);
}

const ChosenAlgorithm* AlgorithmFile::find(const std::string& product) const {
  const auto found = chosen_.find(product);
  return found == chosen_.end() ? nullptr : &found->second;
}

void AlgorithmFile::read_on() {
  const std::string text = read_from(fd_, read_bytes_, path_);
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    ++read_lines_;
    take_in(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  read_bytes_ += static_cast<std::int64_t>(begin);
  // No other process is appending now, so a line without an end never gets one.
  if (begin < text.size() && ::ftruncate(fd_, read_bytes_) != 0) fail(path_, "cannot be shortened");
}

void AlgorithmFile::take_in(std::string_view line) {
  using nlohmann::json;
  try {
    const json entry = json::parse(line);
    ChosenAlgorithm chosen{.name = entry.at("algorithm").get<std::string>(),
                           .microseconds = entry.at("microseconds").get<double>()};
    const auto product = entry.at("product").get<std::string>();
    if (entry.at("device").get<std::string>() == device_) {
      chosen_.emplace(product, std::move(chosen));
    }
  } catch (const json::exception&) {
    throw std::runtime_error(fmt::format(
        "{}:{}: not a line of this file, which are like {{\"device\": \"…\", \"product\": \"…\", "
        "\"algorithm\": \"…\", \"microseconds\": 1.5}}: remove the line, and its product is "
        "timed again",
        path_, read_lines_));
  }
}

void AlgorithmFile::append(const std::string& product, const ChosenAlgorithm& chosen) {
  // The keys have this order, which is easier to read than the alphabetical one.
  const nlohmann::ordered_json entry{{"device", device_},
                                     {"product", product},
                                     {"algorithm", chosen.name},
                                     {"microseconds", chosen.microseconds}};
  const std::string line = entry.dump() + "\n";
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t bytes = ::write(fd_, line.data() + written, line.size() - written);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) fail(path_, "cannot be written to");
    written += static_cast<std::size_t>(bytes);
  }
  if (::fdatasync(fd_) != 0) fail(path_, "cannot be flushed to disk");
  read_bytes_ += static_cast<std::int64_t>(line.size());
  ++read_lines_;
  chosen_.emplace(product, chosen);
}

}  // namespace dstrain
