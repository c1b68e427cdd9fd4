// What the files in a run's folder say, whoever wrote them and whatever is left of them. Nothing in
// the folder is changed.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace dstrain {

/// A folder that has one of these is a run's.
inline constexpr std::array kRunFiles = {"owner.json", "last-run.json", "history.jsonl",
                                         "metrics.jsonl"};

/// A start of the run, and how it ended (history.jsonl).
struct RunStart {
  std::string time;  ///< UTC, ISO 8601, as that of the end
  std::int64_t step = 0;
  int ranks = 0;
  nlohmann::ordered_json layout;  ///< layout_json()
  std::string device;
  std::string host;
  int restart = 0;
  std::vector<std::string> hosts;              ///< by rank; empty: not known
  std::map<std::string, std::string> origins;  ///< of values that are no defaults, by path
  std::string end_time;                        ///< empty: it has not ended, or without a word
  std::string end;
};

/// Returns those that can be read, in the order of the file; none where there is no file.
std::vector<RunStart> read_starts(const std::filesystem::path& folder);

/// config.resolved.json; null where there is none, or it cannot be read.
nlohmann::ordered_json read_resolved_config(const std::filesystem::path& folder);

/// The last whole line of a file of lines, each of a step; null where there is none.
nlohmann::json last_step_line(const std::filesystem::path& path);

/// The last whole lines, at most `most`, in the order of the file. A million of them is as many as
/// are read.
std::vector<nlohmann::json> last_step_lines(const std::filesystem::path& path, std::int64_t most);

/// The last number of that name in the lines at the end of such a file; none where it is in none of
/// them.
std::optional<double> last_number(const std::filesystem::path& path, const std::string& name);

/// Numbers of the config or of a line: the one at a dotted path; none where it is not a number.
std::optional<double> number_at(const nlohmann::json& line, const std::string& path);

}  // namespace dstrain
