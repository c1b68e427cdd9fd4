#include "engine/train/step_lines.h"

#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/base/write_failure.h"
#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {
namespace {

/// Writes all of it; returns 0, or the errno of the failure.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno != EINTR) {
      return errno;
    }
    text.remove_prefix(count < 0 ? 0 : static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace

StepLines::StepLines(std::filesystem::path path, std::int64_t resumed_step)
    : path_(std::move(path)), file_(open_step_file(path_, resumed_step)) {}

void StepLines::add(std::string_view line) {
  unwritten_.append(line).push_back('\n');
}

void StepLines::flush() {
  if (!has_unwritten()) {
    return;
  }
  const auto bytes = static_cast<std::int64_t>(unwritten_.size());
  if (const int error = write_all(file_.file.get(), unwritten_); error != 0) {
    // If half a line cannot be removed here, it is cut off when the run resumes.
    static_cast<void>(::ftruncate(file_.file.get(), file_.bytes) == 0);
    const std::string_view last = std::string_view(unwritten_).substr(0, unwritten_.size() - 1);
    const auto begin = last.rfind('\n');
    const auto line = nlohmann::json::parse(last.substr(begin == last.npos ? 0 : begin + 1));
    throw StorageError(
        describe_write_failure(fmt::format("write the line of step {} to", line.value("step", -1)),
                               path_.string(), error, file_.bytes + bytes));
  }
  file_.bytes += bytes;
  unwritten_.clear();
}

}  // namespace dstrain
