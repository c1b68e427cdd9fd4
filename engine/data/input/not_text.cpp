#include "engine/data/input/not_text.h"

#include <algorithm>
#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/config/config_error.h"
#include "engine/data/input/compression.h"

namespace dstrain {
namespace {

using Content = KnownFormat::Content;

/// The --exclude patterns that leave these files out, by extension where that is enough.
std::string exclude_patterns(const std::vector<NotTextFile>& files) {
  constexpr std::size_t kMost = 6;
  std::set<std::string> patterns;
  for (const NotTextFile& file : files) {
    const std::string name = file.path.substr(file.path.rfind('/') + 1);
    const std::string_view stem = name_without_compression(name);
    const bool by_extension = format_of_name(stem) != nullptr;
    patterns.insert(by_extension ? "*" + name.substr(stem.rfind('.')) : name);
  }
  const auto end = patterns.size() > kMost ? std::next(patterns.begin(), kMost) : patterns.end();
  return fmt::format("--exclude '{}{}'", fmt::join(patterns.begin(), end, ","),
                     end == patterns.end() ? "" : ",…");
}

/// Says how to take JSON as it is; "" where there is no JSON.
std::string json_advice(const std::vector<NotTextFile>& files) {
  std::set<std::string> extensions;
  for (const NotTextFile& file : files) {
    if (file.format->content == Content::kJson) {
      extensions.insert(extension_of(name_without_compression(file.path)));
    }
  }
  return extensions.empty() ? ""
                            : fmt::format("; to train on the JSON as it is written: --as-text {}",
                                          fmt::join(extensions, ","));
}

}  // namespace

void refuse_not_text(const std::vector<NotTextFile>& files) {
  if (files.empty()) {
    return;
  }
  if (files.size() == 1) {
    throw ConfigError(fmt::format("--input: {} is {}: {}, or leave it out: {}{}",
                                  files.front().path, files.front().format->what,
                                  files.front().format->advice, exclude_patterns(files),
                                  json_advice(files)));
  }
  constexpr std::size_t kShown = 3;
  std::string named;
  for (std::size_t i = 0; i < std::min(kShown, files.size()); ++i) {
    named += fmt::format("{}{} ({})", i == 0 ? "" : ", ", files[i].path, files[i].format->what);
  }
  const bool are_alike = std::all_of(files.begin(), files.end(), [&](const NotTextFile& file) {
    return file.format == files.front().format;
  });
  throw ConfigError(fmt::format(
      "--input: {} files are neither text nor JSON lines: {}{}; {}, or leave them out: {}{}",
      files.size(), named,
      files.size() > kShown ? fmt::format(" and {} more", files.size() - kShown) : "",
      are_alike ? files.front().format->advice : "unpack them or extract their text first",
      exclude_patterns(files), json_advice(files)));
}

}  // namespace dstrain
