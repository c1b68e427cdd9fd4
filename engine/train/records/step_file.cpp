#include "engine/train/records/step_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "engine/base/write_failure.h"
#include "engine/checkpoint/durable_files.h"
#include "engine/train/records/appended_file.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kWindowBytes = std::int64_t{4} << 20;
constexpr std::int64_t kParsedBytes = std::int64_t{64} << 20;  // at the file's end
/// A line that another program has rewritten is parsed whole to find its step, up to this size: a
/// value of nested arrays takes a hundred times the memory of its text.
constexpr std::size_t kLongestForeignLine = std::size_t{1} << 20;
/// A rank has about 110 bytes in a line of ranks.jsonl, so this has room for half a million ranks.
constexpr std::size_t kLongestLine = std::size_t{1} << 26;
constexpr std::string_view kBeginning = "{\"step\":";

[[noreturn]] void fail(std::string_view what, const fs::path& path) {
  throw StorageError(describe_write_failure(what, path.string(), errno));
}

/// Every control character of a JSON line is written as an escape, so a raw one is damage.
bool has_control_character(std::string_view line) {
  unsigned char any = 0;
  for (const char c : line) {
    any |= static_cast<unsigned char>(static_cast<unsigned char>(c) < 0x20);
  }
  return any != 0;
}

/// The step of a line as this program writes it.
std::optional<std::int64_t> step_of_own_line(std::string_view line) {
  std::int64_t step = 0;
  if (!line.starts_with(kBeginning) || line.back() != '}' || has_control_character(line)) {
    return std::nullopt;
  }
  const auto [end, error] =
      std::from_chars(line.data() + kBeginning.size(), line.data() + line.size(), step);
  const bool is_number = error == std::errc() && (*end == ',' || *end == '}');
  return is_number && step >= 0 ? std::optional(step) : std::nullopt;
}

std::optional<std::int64_t> step_of_foreign_line(std::string_view line) {
  if (line.size() > kLongestForeignLine) {
    return std::nullopt;
  }
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step = json.is_object() ? json.find("step") : json.end();
  return step != json.end() && step->is_number_unsigned() ? std::optional(step->get<std::int64_t>())
                                                          : std::nullopt;
}

/// The step of a line; none if it is not the line of a step.
std::optional<std::int64_t> step_of(std::string_view line, bool parse) {
  if (const auto step = step_of_own_line(line)) {
    return parse && !nlohmann::json::accept(line) ? std::nullopt : step;
  }
  return step_of_foreign_line(line);
}

struct Line {
  std::int64_t number = 0;  ///< from 1
  std::int64_t begin_byte = 0;
  std::string_view text;  ///< without its end; of one that is too long, only the beginning
  bool is_ended = true;   ///< by a newline, which only the last may lack
  bool is_too_long = false;

  [[nodiscard]] std::optional<std::int64_t> step(std::int64_t file_bytes) const {
    if (text.empty() || is_too_long) {
      return std::nullopt;
    }
    return step_of(text, begin_byte >= file_bytes - kParsedBytes);
  }
};

/// Calls `visit` with every line. Memory is a window's, or a line's where that is longer.
void for_each_line(const FileDescriptor& file,
                   const fs::path& path,
                   const std::function<void(const Line&)>& visit) {
  std::vector<char> window(static_cast<std::size_t>(kWindowBytes));
  std::string begun;  // of a line that did not end in the windows before
  Line line{.number = 1};
  std::int64_t at = 0;
  const auto take = [&](std::string_view part) {
    const std::size_t room = kLongestLine - std::min(begun.size(), kLongestLine);
    line.is_too_long = line.is_too_long || part.size() > room;
    begun.append(part.substr(0, room));
  };
  const auto end_line = [&](std::string_view part, bool is_ended) {
    if (!begun.empty()) {
      take(part);
    }
    line.text = begun.empty() ? part : std::string_view(begun);
    line.is_ended = is_ended;
    visit(line);
    begun.clear();
    line = {.number = line.number + 1};
  };
  while (true) {
    const ssize_t count = ::pread(file.get(), window.data(), window.size(), at);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail("read", path);
    }
    if (count == 0) {
      break;
    }
    std::string_view rest(window.data(), static_cast<std::size_t>(count));
    at += count;
    for (auto end = rest.find('\n'); end != rest.npos; end = rest.find('\n')) {
      end_line(rest.substr(0, end), true);
      rest.remove_prefix(end + 1);
      line.begin_byte = at - static_cast<std::int64_t>(rest.size());
    }
    take(rest);
  }
  if (!begun.empty()) {
    end_line({}, false);
  }
}

/// The part of the file that stays.
struct Kept {
  std::int64_t bytes = 0;
  std::int64_t dropped_from = -1;  ///< where the first line to be removed begins
  bool in_one_piece = true;        ///< nothing stays behind it
  bool last_lacks_end = false;
  std::int64_t bad_lines = 0;
  std::int64_t first_bad_line = 0;
};

Kept look_through(const FileDescriptor& file,
                  const fs::path& path,
                  std::int64_t file_bytes,
                  std::int64_t last_step) {
  Kept kept;
  for_each_line(file, path, [&](const Line& line) {
    const std::optional<std::int64_t> step = line.step(file_bytes);
    if (step && *step <= last_step) {
      kept.bytes += static_cast<std::int64_t>(line.text.size()) + 1;
      kept.in_one_piece = kept.in_one_piece && kept.dropped_from < 0;
      kept.last_lacks_end = !line.is_ended;
      return;
    }
    if (kept.dropped_from < 0) {
      kept.dropped_from = line.begin_byte;
    }
    if (!step && ++kept.bad_lines == 1) {
      kept.first_bad_line = line.number;
    }
  });
  return kept;
}

void tell(const fs::path& path, const Kept& kept, std::int64_t last_step) {
  if (kept.bad_lines == 0) {
    return;
  }
  const std::string more =
      kept.bad_lines == 1 ? "" : fmt::format(", nor are {} others", kept.bad_lines - 1);
  spdlog::warn("{}:{}: is not the line of a step{}: removed; all whole lines up to step {} stay",
               path.string(), kept.first_bad_line, more, last_step);
}

/// Writes the lines that stay to a new file, which takes over the name.
void rewrite(const FileDescriptor& file,
             const fs::path& path,
             std::int64_t file_bytes,
             std::int64_t last_step,
             const Kept& kept) {
  const DurableFiles files;
  const fs::path temporary = path.string() + ".tmp";
  DurableFile out(files, temporary, kept.bytes);
  for_each_line(file, path, [&](const Line& line) {
    const std::optional<std::int64_t> step = line.step(file_bytes);
    if (step && *step <= last_step) {
      out.write(std::as_bytes(std::span(line.text)));
      out.write(std::as_bytes(std::span(std::string_view("\n"))));
    }
  });
  out.finish();
  files.rename(temporary, path);
  files.sync_folder(path.parent_path().empty() ? fs::path(".") : path.parent_path());
}

}  // namespace

StepFile open_step_file(const fs::path& path, std::int64_t last_step) {
  StepFile opened{.file = open_for_appending(path)};
  const std::int64_t file_bytes = ::lseek(opened.file.get(), 0, SEEK_END);
  const Kept kept = last_step > 0 ? look_through(opened.file, path, file_bytes, last_step)
                                  : Kept{.dropped_from = 0};
  tell(path, kept, last_step);
  opened.bytes = kept.bytes;
  if (!kept.in_one_piece) {
    rewrite(opened.file, path, file_bytes, last_step, kept);
    opened.file = open_for_appending(path);
    return opened;
  }
  if (kept.dropped_from >= 0 && kept.dropped_from < file_bytes &&
      ::ftruncate(opened.file.get(), kept.dropped_from) != 0) {
    fail("shorten", path);
  }
  if (kept.last_lacks_end && ::write(opened.file.get(), "\n", 1) != 1) {
    fail("write", path);
  }
  if (::fsync(opened.file.get()) != 0) {
    fail("sync", path);
  }
  return opened;
}

}  // namespace dstrain
