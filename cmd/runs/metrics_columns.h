// MetricsColumns: all of a run's metrics.jsonl as columns of numbers, one value a step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dstrain {

class MetricsColumns {
 public:
  /// Reads the lines that are whole, in the order of the file, which is that of their steps; others
  /// are counted. No file: no steps. Throws StorageError where it cannot be read.
  explicit MetricsColumns(const std::filesystem::path& folder);

  [[nodiscard]] std::size_t size() const { return steps_.size(); }
  [[nodiscard]] const std::vector<std::int64_t>& steps() const { return steps_; }
  /// When each step ended, seconds since 1970; NaN where the line does not say.
  [[nodiscard]] const std::vector<double>& times() const { return times_; }
  /// The values at a dotted path, "memory_bytes.peak"; NaN where a line has no such number. Empty
  /// where no line has.
  [[nodiscard]] const std::vector<float>& column(const std::string& path) const;
  [[nodiscard]] std::int64_t bad_lines() const { return bad_lines_; }

 private:
  friend class LineReader;
  std::vector<std::int64_t> steps_;
  std::vector<double> times_;
  std::unordered_map<std::string, std::vector<float>> columns_;
  std::int64_t bad_lines_ = 0;
};

/// Seconds since 1970 of "2026-11-22T16:30:00.123Z"; NaN of other text.
double seconds_of(std::string_view utc);

}  // namespace dstrain
