#include "cmd/why/step_account.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "cmd/runs/metrics_columns.h"
#include "cmd/runs/run_files.h"
#include "engine/config/config_error.h"

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

/// Finds the rank that was slowest in most of the steps.
void find_slowest(const std::vector<Json>& lines, StepAccount& account) {
  std::map<int, double> slower_by;
  for (const Json& line : lines) {
    const int rank = static_cast<int>(or_zero(line, "time_split.slowest_rank"));
    ++account.slowest[rank];
    slower_by[rank] += or_zero(line, "time_split.slower_by");
  }
  const int rank = account.slowest_rank();
  account.slower_by = slower_by[rank] / account.slowest[rank];
}

}  // namespace

double StepAccount::unexplained() const {
  return wall -
         std::accumulate(communication.begin(), communication.end(),
                         compute + data + pipeline + straggler + host + evaluation + checkpoint);
}

int StepAccount::slowest_rank() const {
  const auto most = std::max_element(
      slowest.begin(), slowest.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  return most == slowest.end() ? -1 : most->first;
}

StepAccount account_of(const std::filesystem::path& folder, std::int64_t most) {
  std::vector<Json> lines = last_step_lines(folder / "metrics.jsonl", most + 1);
  if (lines.size() < 2 || !lines.back().contains("time_split")) {
    throw ConfigError(fmt::format(
        "{} has no two steps that say where their time went: a run writes \"time_split\" where "
        "its ranks are processes, from its first step on",
        (folder / "metrics.jsonl").string()));
  }
  StepAccount account;
  // From the end of the line before to the end of the last; a start lies between none of them.
  double before = seconds_of(text_at(lines.front(), "time"));
  lines.erase(lines.begin());
  account.first_step = lines.front()["step"].get<std::int64_t>();
  account.last_step = lines.back()["step"].get<std::int64_t>();
  const double end = seconds_of(text_at(lines.back(), "time"));
  double steps = 0.0;
  for (const Json& line : lines) {
    add_line(line, account);
    steps += or_zero(line, "step_seconds");
  }
  const double named = steps + account.evaluation + account.checkpoint;
  account.wall = end - before;
  if (!(account.wall >= named)) account.wall = named;  // a clock that was set, or no times
  find_slowest(lines, account);
  return account;
}

RankSeconds rank_seconds(const std::filesystem::path& folder) {
  const Json line = last_step_line(folder / "ranks.jsonl");
  RankSeconds seconds;
  try {
    const Json& of = line.at("seconds");
    seconds.step = line.at("step").get<std::int64_t>();
    seconds.computing = of.at("computing").get<std::vector<double>>();
    seconds.data = of.at("data").get<std::vector<double>>();
    if (of.contains("waiting_for")) {
      seconds.waiting_for = of.at("waiting_for").get<std::map<std::string, std::vector<double>>>();
    }
  } catch (const Json::exception&) {
    return {};
  }
  const std::size_t ranks = seconds.computing.size();
  const bool fits = seconds.data.size() == ranks &&
                    std::all_of(seconds.waiting_for.begin(), seconds.waiting_for.end(),
                                [&](const auto& waits) { return waits.second.size() == ranks; });
  return fits ? seconds : RankSeconds();
}

}  // namespace dstrain
