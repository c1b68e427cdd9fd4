#include "cmd/why/step_account.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "cmd/runs/metrics_columns.h"
#include "cmd/runs/run_files.h"
#include "engine/config/config_error.h"
#include "engine/train/records/recent_ranks.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

double or_zero(const Json& line, const std::string& path) {
  return number_at(line, path).value_or(0.0);
}

std::string text_at(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found == line.end() || !found->is_string() ? std::string() : found->get<std::string>();
}

void add_line(const Json& line, StepAccount& account) {
  account.compute += or_zero(line, "time_split.compute");
  account.data += or_zero(line, "time_split.data");
  for (std::size_t whom = 0; whom < kWaitsFor; ++whom) {
    account.communication[whom] += or_zero(
        line, fmt::format("time_split.communication.{}", name_of(static_cast<WaitFor>(whom))));
  }
  account.pipeline += or_zero(line, "time_split.pipeline");
  account.straggler += or_zero(line, "time_split.straggler");
  account.host += or_zero(line, "time_split.rest");
  account.evaluation += or_zero(line, "evaluation_seconds");
  account.checkpoint += or_zero(line, "checkpoint_seconds");
}

}  // namespace

double StepAccount::unexplained() const {
  return wall -
         std::accumulate(communication.begin(), communication.end(),
                         compute + data + pipeline + straggler + host + evaluation + checkpoint);
}

int StepAccount::slowest_rank() const {
  return std::max_element(
             slowest.begin(), slowest.end(),
             [](const auto& one, const auto& other) { return one.second < other.second; })
      ->first;
}

StepAccount account_of(const std::filesystem::path& folder, std::int64_t most) {
  constexpr std::int64_t kBytesOfLine = 4096;  // more than a line of metrics has
  const std::filesystem::path path = folder / "metrics.jsonl";
  StepAccount account;
  std::int64_t lines = 0;
  double steps = 0.0;
  double end = 0.0;     // of the last step
  double before = 0.0;  // when the step before the first ended
  std::map<int, double> slower_by;
  Json pending;  // which counts once there is one before it
  visit_step_lines(
      path, std::max<std::int64_t>(1 << 20, (most + 1) * kBytesOfLine), [&](const Json& line) {
        before = seconds_of(text_at(line, "time"));
        if (pending.is_null()) {
          end = before;
          account.last_step = line["step"].get<std::int64_t>();
        } else {
          add_line(pending, account);
          steps += or_zero(pending, "step_seconds");
          const int rank = static_cast<int>(or_zero(pending, "time_split.slowest_rank"));
          ++account.slowest[rank];
          slower_by[rank] += or_zero(pending, "time_split.slower_by");
          account.first_step = pending["step"].get<std::int64_t>();
          if (++lines == most) return false;
        }
        if (!line.contains("time_split")) return false;
        pending = line;
        return true;
      });
  if (lines == 0) {
    throw ConfigError(
        fmt::format("{} has no two steps that say where their time went: a run writes "
                    "\"time_split\" where its ranks are processes, from its first step on",
                    path.string()));
  }
  const double named = steps + account.evaluation + account.checkpoint;
  account.wall = end - before;
  if (!(account.wall >= named)) account.wall = named;  // a clock that was set, or no times
  const int rank = account.slowest_rank();
  account.slower_by = slower_by[rank] / account.slowest[rank];
  return account;
}

RankSeconds rank_seconds(const std::filesystem::path& folder) {
  const Json recent = last_step_line(folder / RecentRanks::kFile);
  const Json line = recent.is_null() ? last_step_line(folder / "ranks.jsonl") : recent;
  RankSeconds seconds;
  try {
    const Json& of = line.at("seconds");
    seconds.step = line.at("step").get<std::int64_t>();
    seconds.computing = of.at("computing").get<std::vector<double>>();
    seconds.data = of.at("data").get<std::vector<double>>();
    if (of.contains("bytes_waited_for")) {
      seconds.bytes_waited_for = of.at("bytes_waited_for").get<std::vector<double>>();
    }
    if (of.contains("waiting_for")) {
      seconds.waiting_for = of.at("waiting_for").get<std::map<std::string, std::vector<double>>>();
    }
  } catch (const Json::exception&) {
    return {};
  }
  const std::size_t ranks = seconds.computing.size();
  const bool fits =
      seconds.data.size() == ranks &&
      (seconds.bytes_waited_for.empty() || seconds.bytes_waited_for.size() == ranks) &&
      std::all_of(seconds.waiting_for.begin(), seconds.waiting_for.end(),
                  [&](const auto& waits) { return waits.second.size() == ranks; });
  return fits ? seconds : RankSeconds();
}

}  // namespace dstrain
