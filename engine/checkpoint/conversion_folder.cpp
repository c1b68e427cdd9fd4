#include "engine/checkpoint/conversion_folder.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/regular_file.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarker = ".conversion.json";

bool is_empty_or_absent(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) {
    return true;
  }
  if (!fs::is_directory(status)) {
    throw ConfigError(fmt::format("{}: is a file; expected a new folder", folder.string()));
  }
  // All that a conversion killed in its first moment leaves.
  return std::all_of(fs::directory_iterator(folder), fs::directory_iterator(),
                     [&](const fs::directory_entry& entry) {
                       return entry.path() == part_path(folder / kMarker);
                     });
}

std::vector<WrittenFile> read_done(const nlohmann::json& marker) {
  std::vector<WrittenFile> done;
  for (const auto& value : marker.at("done")) {
    WrittenFile file{.name = value.at("name").get<std::string>(),
                     .bytes = value.at("bytes").get<std::int64_t>()};
    if (parse_checksum(value.at("xxh3_64").get<std::string>(), file.checksum)) {
      done.push_back(std::move(file));
    }
  }
  return done;
}

}  // namespace

bool is_unfinished_conversion(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kMarker, error);
}

ConversionFolder::ConversionFolder(fs::path folder, std::string of, const DurableFiles& files)
    : folder_(std::move(folder)), of_(std::move(of)), files_(files) {
  if (is_unfinished_conversion(folder_)) {
    take_up();
    return;
  }
  if (!is_empty_or_absent(folder_)) {
    throw ConfigError(fmt::format(
        "{}: is not empty: name a new folder; nothing there is overwritten", folder_.string()));
  }
  files_.make_folder(folder_);
  write_marker();
}

void ConversionFolder::take_up() {
  std::string found;
  try {
    const auto marker = nlohmann::json::parse(read_regular_file((folder_ / kMarker).string()).text);
    found = marker.at("of").get<std::string>();
    done_ = read_done(marker);
  } catch (const nlohmann::json::exception&) {
    throw ConfigError(fmt::format("{}: is damaged: remove the folder, or name another",
                                  (folder_ / kMarker).string()));
  }
  if (found != of_) {
    throw ConfigError(fmt::format(
        "{}: holds an interrupted conversion of something else ({}), or its source has changed "
        "since: remove the folder, or name another",
        folder_.string(), found));
  }
}

bool ConversionFolder::add(const std::string& name,
                           const ByteProgress& progress,
                           const std::function<WrittenFile(const fs::path& part)>& write) {
  const auto found = std::find_if(done_.begin(), done_.end(),
                                  [&](const WrittenFile& file) { return file.name == name; });
  if (found != done_.end()) {
    if (holds_bytes(folder_ / name, *found, [](std::int64_t) {})) {
      progress(2 * found->bytes);  // as if written and read back
      return true;
    }
    done_.erase(found);
  }
  done_.push_back(write_checked(files_, folder_ / name, progress, write));
  write_marker();
  return false;
}

void ConversionFolder::add_text(const std::string& name, std::string_view content) {
  files_.write_file(part_path(folder_ / name), content);
  files_.rename(part_path(folder_ / name), folder_ / name);
}

void ConversionFolder::finish(const std::string& name, std::string_view content) {
  add_text(name, content);
  files_.sync_folder(folder_);
  files_.remove_tree(folder_ / kMarker);
  files_.sync_folder(folder_);
}

void ConversionFolder::write_marker() const {
  nlohmann::ordered_json marker{{"of", of_}, {"done", nlohmann::ordered_json::array()}};
  for (const WrittenFile& file : done_) {
    marker["done"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_64", checksum_text(file.checksum)}});
  }
  const fs::path path = folder_ / kMarker;
  files_.write_file(part_path(path),
                    marker.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  files_.rename(part_path(path), path);
  files_.sync_folder(folder_);
}

}  // namespace dstrain
