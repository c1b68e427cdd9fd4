#include "engine/data/input/input_files.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

class Walk {
 public:
  Walk(const InputSelection& selection, const std::function<bool()>& stop_requested)
      : selection_(selection), stop_requested_(stop_requested) {
    std::error_code ignored;
    left_out_ = fs::weakly_canonical(selection.left_out_folder, ignored);
  }

  void take_named(const std::string& named) {
    std::error_code error;
    const fs::file_status status = fs::status(named, error);
    if (!fs::exists(status)) {
      throw ConfigError(fmt::format("--input {}: {}", named,
                                    error ? error.message() : "there is no such file or folder"));
    }
    if (fs::is_directory(status)) {
      root_length_ = named.size() + (named.ends_with('/') ? 0 : 1);
      enter_all_from(named);
    } else if (fs::is_regular_file(status)) {
      const std::size_t slash = named.rfind('/');
      root_length_ = slash == std::string::npos ? 0 : slash + 1;
      if (!is_excluded(named)) {
        take_file(named, Chosen::kByName);
      }
    } else {
      throw ConfigError(fmt::format(
          "--input {}: is a pipe, socket or device; expected a file or a folder", named));
    }
  }

  [[nodiscard]] InputFiles take_found() { return std::move(found_); }

 private:
  /// Depth first, without recursion: trees may be deep.
  void enter_all_from(const fs::path& root) {
    std::vector<fs::path> waiting{root};
    while (!waiting.empty() && !stop_requested_()) {
      const fs::path folder = std::move(waiting.back());
      waiting.pop_back();
      std::vector<fs::path> inner = list(folder);
      // The folder to enter first comes last: the vector is a stack.
      waiting.insert(waiting.end(), std::make_move_iterator(inner.rbegin()),
                     std::make_move_iterator(inner.rend()));
    }
  }

  /// Takes the files of `folder` in order of their names; returns its folders in that order.
  std::vector<fs::path> list(const fs::path& folder) {
    std::error_code error;
    if (!left_out_.empty() && fs::equivalent(folder, left_out_, error)) {
      return {};
    }
    std::vector<fs::directory_entry> entries;
    fs::directory_iterator it(folder, error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
      entries.push_back(*it);
    }
    if (error) {
      found_.unreadable.push_back(fmt::format("{}: {}", folder.string(), error.message()));
    }
    std::sort(entries.begin(), entries.end(),
              [](const auto& a, const auto& b) { return a.path().native() < b.path().native(); });
    std::vector<fs::path> folders;
    for (const fs::directory_entry& entry : entries) {
      take_entry(entry, folders);
    }
    return folders;
  }

  void take_entry(const fs::directory_entry& entry, std::vector<fs::path>& folders) {
    if (entry.path().filename().native().starts_with('.')) {
      ++found_.hidden;
      return;
    }
    if (is_excluded(entry.path().native())) {
      return;
    }
    std::error_code error;
    const bool is_link = entry.is_symlink(error);
    const fs::file_status status = entry.status(error);
    if (fs::is_directory(status)) {
      if (is_link) {
        ++found_.folder_links;
      } else {
        folders.push_back(entry.path());
      }
    } else if (fs::is_regular_file(status)) {
      if (has_wanted_extension(entry.path().native())) {
        take_file(entry.path().string(), Chosen::kByWalking);
      }
    } else if (is_link) {  // dangling or circular
      found_.unreadable.push_back(fmt::format("{}: a broken link", entry.path().string()));
    } else if (error) {
      found_.unreadable.push_back(fmt::format("{}: {}", entry.path().string(), error.message()));
    } else {
      ++found_.special;
    }
  }

  [[nodiscard]] bool has_wanted_extension(const std::string& path) const {
    return selection_.extensions.empty() ||
           std::any_of(selection_.extensions.begin(), selection_.extensions.end(),
                       [&](const std::string& extension) { return path.ends_with(extension); });
  }

  /// Whether a pattern excludes it; counts it if so.
  bool is_excluded(const std::string& path) {
    const std::string below = path.substr(std::min(root_length_, path.size()));
    const std::string name = path.substr(path.rfind('/') + 1);
    const bool excluded =
        std::any_of(selection_.exclude.begin(), selection_.exclude.end(), [&](const auto& pattern) {
          const bool of_path = pattern.find('/') != std::string::npos;
          return ::fnmatch(pattern.c_str(), (of_path ? below : name).c_str(), 0) == 0;
        });
    found_.excluded += excluded ? 1 : 0;
    return excluded;
  }

  enum class Chosen : std::uint8_t { kByName, kByWalking };

  void take_file(const std::string& path, Chosen chosen) {
    struct stat facts {};
    if (::stat(path.c_str(), &facts) != 0) {
      found_.unreadable.push_back(
          fmt::format("{}: {}", path, std::generic_category().message(errno)));
      return;
    }
    const InputKind kind =
        facts.st_size == 0 ? InputKind{} : find_input_kind(path, selection_.kind);
    // Programs and images lie in any folder; they are recognised as binary and counted.
    const bool is_foreign =
        kind.refused != nullptr && kind.refused->content == KnownFormat::Content::kOther;
    if (kind.refused != nullptr && !(is_foreign && chosen == Chosen::kByWalking)) {
      found_.not_text.push_back({path, kind.refused});
      return;
    }
    found_.files.push_back(
        {.path = path,
         .name_begin = static_cast<std::uint32_t>(root_length_),
         .bytes = static_cast<std::int64_t>(facts.st_size),
         .modified_ns = facts.st_mtim.tv_sec * std::int64_t{1'000'000'000} + facts.st_mtim.tv_nsec,
         .compression = kind.compression,
         .is_json_lines = kind.is_json_lines});
  }

  const InputSelection& selection_;
  const std::function<bool()>& stop_requested_;
  fs::path left_out_;
  std::size_t root_length_ = 0;
  InputFiles found_;
};

}  // namespace

InputFiles find_input_files(const std::vector<std::string>& paths,
                            const InputSelection& selection,
                            const std::function<bool()>& stop_requested) {
  Walk walk(selection, stop_requested);
  for (const std::string& path : paths) {
    walk.take_named(path);
  }
  return walk.take_found();
}

}  // namespace dstrain
