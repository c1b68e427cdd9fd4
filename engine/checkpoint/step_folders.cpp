#include "engine/checkpoint/step_folders.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <tuple>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/manifest.h"

namespace dstrain {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::string_view kOldSuffix = ".old";

std::optional<StepFolder> parse_name(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  std::string_view rest = name;
  auto kind = StepFolder::Kind::kCheckpoint;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    if (rest.ends_with(kTemporarySuffix)) {
      kind = StepFolder::Kind::kTemporary;
    } else if (rest.ends_with(kOldSuffix)) {
      kind = StepFolder::Kind::kOld;
    } else {
      return std::nullopt;
    }
    rest.remove_suffix(kOldSuffix.size());
  }
  if (!rest.starts_with(kPrefix)) {
    return std::nullopt;
  }
  rest.remove_prefix(kPrefix.size());
  std::int64_t step = -1;
  const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), step);
  if (result.ec != std::errc() || result.ptr != rest.data() + rest.size() || step < 0) {
    return std::nullopt;
  }
  return StepFolder{.kind = kind, .step = step, .path = path};
}

}  // namespace

static_assert(kTemporarySuffix.size() == kOldSuffix.size());

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

std::string temporary_name(const std::string& name) {
  return fmt::format(".{}{}", name, kTemporarySuffix);
}

std::string old_name(const std::string& name) {
  return fmt::format(".{}{}", name, kOldSuffix);
}

std::vector<StepFolder> list_step_folders(const std::filesystem::path& folder) {
  std::vector<StepFolder> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (auto step_folder = parse_name(entry->path())) {
      found.push_back(std::move(*step_folder));
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw CheckpointError(fmt::format("cannot list {}: {}", folder.string(), error.message()));
  }
  std::sort(found.begin(), found.end(), [](const StepFolder& a, const StepFolder& b) {
    return std::tie(b.step, a.kind, a.path) < std::tie(a.step, b.kind, b.path);
  });
  return found;
}

std::optional<std::string> fault_of_checkpoint(const std::filesystem::path& checkpoint) {
  try {
    return fault_of_files(read_manifest(checkpoint), checkpoint);
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

}  // namespace dstrain
