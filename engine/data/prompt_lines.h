// PromptLines: the lines of files of JSON lines, one prompt each, in an order that a seed decides:
// all of them once, then all of them in another order, and so on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/mapped_file.h"
#include "engine/config/data_config.h"

namespace dstrain {

class PromptLines {
 public:
  /// Throws ConfigError where a file cannot be read, or there is no line. Empty lines do not count.
  PromptLines(const std::vector<DataSource>& sources, std::uint64_t seed);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(lines_.size()); }
  /// Which line is prompt `number` of the run.
  [[nodiscard]] std::int64_t draw(std::int64_t number) const;
  [[nodiscard]] std::string_view line(std::int64_t index) const;
  /// "prompts.jsonl:3"
  [[nodiscard]] std::string where(std::int64_t index) const;
  /// How often each file was gone through after so many prompts.
  [[nodiscard]] std::vector<double> epochs(std::int64_t prompts) const;

 private:
  struct Line {
    int file = 0;
    std::int64_t number = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<MappedFile> files_;
  std::vector<Line> lines_;
  std::uint64_t seed_;
};

}  // namespace dstrain
