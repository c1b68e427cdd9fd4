// Reads the files in a run's folder, whoever wrote them and whatever is left of them. Nothing in
// the folder is changed.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/checkpoint/owner/owner_record.h"
#include "engine/train/records/run_history.h"

namespace dstrain {

/// A folder that has one of these is a run's.
inline constexpr std::array kRunFiles = {kOwnerFile, kLastRunFile, RunHistory::kFile,
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

/// Calls `visit` with the whole lines of such a file, the last one first, until it returns false.
/// Reads only the end of a file of more than `most_bytes`.
void visit_step_lines(const std::filesystem::path& path,
                      std::int64_t most_bytes,
                      const std::function<bool(const nlohmann::json& line)>& visit);

/// The last number of that name in the lines at the end of such a file; none where it is in none of
/// them.
std::optional<double> last_number(const std::filesystem::path& path, const std::string& name);

/// Returns the number at a dotted path of a config or of a line, 1 or 0 where it says true or
/// false; none where it is something else.
std::optional<double> number_at(const nlohmann::json& line, const std::string& path);

}  // namespace dstrain
