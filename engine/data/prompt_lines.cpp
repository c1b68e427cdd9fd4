#include "engine/data/prompt_lines.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/data/permutation.h"

namespace dstrain {

PromptLines::PromptLines(const std::vector<DataSource>& sources, std::uint64_t seed) : seed_(seed) {
  for (const DataSource& source : sources) {
    files_.push_back(MappedFile::open<ConfigError>(source.prefix));
    const auto bytes = files_.back().bytes();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    Line line{.file = static_cast<int>(files_.size()) - 1};
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      line.number += 1;
      line.begin = static_cast<std::int64_t>(begin);
      line.end = static_cast<std::int64_t>(end);
      if (text.find_first_not_of(" \t\r", begin) < end) lines_.push_back(line);
      begin = end + 1;
    }
  }
  if (lines_.empty()) {
    throw ConfigError(fmt::format("{}: holds no line, expected a prompt in each",
                                  sources.empty() ? "data.train" : sources.front().prefix));
  }
}

std::int64_t PromptLines::draw(std::int64_t number) const {
  constexpr std::uint64_t kStream = 0x70726f6d707473;  // "prompts", of which each pass has another
  return permuted(number % size(), size(), seed_,
                  kStream + static_cast<std::uint64_t>(number / size()));
}

std::string_view PromptLines::line(std::int64_t index) const {
  const Line& line = lines_.at(static_cast<std::size_t>(index));
  const auto bytes = files_[static_cast<std::size_t>(line.file)].bytes();
  return {reinterpret_cast<const char*>(bytes.data()) + line.begin,
          static_cast<std::size_t>(line.end - line.begin)};
}

std::string PromptLines::where(std::int64_t index) const {
  const Line& line = lines_.at(static_cast<std::size_t>(index));
  return fmt::format("{}:{}", files_[static_cast<std::size_t>(line.file)].path(), line.number);
}

std::vector<double> PromptLines::epochs(std::int64_t prompts) const {
  return std::vector<double>(files_.size(),
                             static_cast<double>(prompts) / static_cast<double>(size()));
}

}  // namespace dstrain
