#include "engine/checkpoint/base_weights.h"

#include <algorithm>
#include <array>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "engine/base/checksum.h"
#include "engine/base/mapped_file.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/recognise_format.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Other weights of the same model differ all over, so that the ends of a file tell them apart.
constexpr std::size_t kEnd = std::size_t{1} << 20;
constexpr std::array<std::string_view, 4> kEndings = {".safetensors", ".bin", ".pt", ".pth"};

std::vector<fs::path> files_of_weights(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return {path};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path, error)) {
    const std::string ending = entry.path().extension().string();
    if (std::find(kEndings.begin(), kEndings.end(), ending) == kEndings.end()) continue;
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  }
  if (error) {
    throw CheckpointError(fmt::format("{} cannot be read: {}", path.string(), error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

bool stay_in_place(const fs::path& path) {
  try {
    return recognise_format(path).format != CheckpointFormat::kDstrain;
  } catch (const ConfigError&) {
    return true;
  } catch (const CheckpointError&) {
    return true;
  }
}

BaseWeights identify_weights(const fs::path& path) {
  const fs::path found = recognise_format(path).path;
  RunningChecksum all;
  for (const fs::path& name : files_of_weights(found)) {
    const MappedFile file = MappedFile::open<CheckpointError>(name.string());
    const std::span<const std::byte> bytes = file.bytes();
    const std::string relative = name.lexically_relative(found).string();
    all.add(std::as_bytes(std::span(relative)));
    all.add_value(file.num_bytes());
    all.add(bytes.first(std::min(bytes.size(), kEnd)));
    all.add(bytes.last(std::min(bytes.size(), kEnd)));
  }
  return {.path = fs::absolute(found).lexically_normal().string(),
          .identity = checksum_text(all.value())};
}

fs::path find_base(const BaseWeights& base,
                   const fs::path& checkpoint,
                   const fs::path& place,
                   std::string_view setting) {
  const fs::path path = place.empty() ? fs::path(base.path) : place;
  const auto refuse = [&](const std::string& why) {
    throw CheckpointError(fmt::format(
        "{} holds what was trained beside the weights in {}, and {}: {}", checkpoint.string(),
        base.path, why,
        setting.empty() ? "put them back" : fmt::format("say by {} where they are now", setting)));
  };
  std::error_code error;
  if (!fs::exists(path, error)) refuse(fmt::format("{} is not there", path.string()));
  if (identify_weights(path).identity != base.identity) {
    refuse(fmt::format("{} holds others", path.string()));
  }
  return path;
}

}  // namespace dstrain
