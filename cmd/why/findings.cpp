#include "cmd/why/findings.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/plan/mesh.h"

namespace dstrain {
namespace {

constexpr double kWorthNaming = 1.0 / 30.0;  // of the wall time
constexpr double kSlower = 0.1;              // than the others, before a rank is named

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double percent(double share) {
  return 100.0 * share;
}

double number(const RunOverview& run, const std::string& path, double otherwise) {
  return number_at(run.config, path).value_or(otherwise);
}

bool is_true(const RunOverview& run, const std::string& path) {
  return number(run, path, 0.0) != 0.0;
}

int degree(const RunOverview& run, const char* axis) {
  if (run.starts.empty()) return 1;
  return std::max(1, static_cast<int>(number_at(run.starts.back().layout, axis).value_or(1.0)));
}

/// The places of the ranks at the last start; none where its layout has not that many. How data and
/// context ranks are divided further makes no difference to who is in a group with whom.
std::optional<Mesh> mesh_of(const RunOverview& run, std::size_t ranks) {
  const Mesh mesh({.pipeline = degree(run, "pipeline"),
                   .data_inside = degree(run, "data"),
                   .context_ring = degree(run, "context"),
                   .tensor = degree(run, "tensor")});
  return mesh.world_size() == static_cast<int>(ranks) ? std::optional(mesh) : std::nullopt;
}

std::string hosts_of(const RunOverview& run, const std::vector<int>& ranks) {
  if (run.starts.empty()) return "";
  std::vector<std::string> hosts;
  for (const int rank : ranks) {
    if (static_cast<std::size_t>(rank) >= run.starts.back().hosts.size()) return "";
    const std::string& host = run.starts.back().hosts[static_cast<std::size_t>(rank)];
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return fmt::format(" on {}", fmt::join(hosts, " and "));
}

/// Names the group whose transfers take clearly longer than those of the median group; empty where
/// there is none.
std::string slowest_group(const RunOverview& run, WaitFor whom, const RankSeconds& seconds) {
  const auto waits = seconds.waiting_for.find(std::string(name_of(whom)));
  if (waits == seconds.waiting_for.end()) return "";
  const std::vector<double>& wait = waits->second;
  const std::optional<Mesh> mesh = mesh_of(run, wait.size());
  if (!mesh) return "";
  std::map<int, double> least;  // of each group, by its first rank
  for (int rank = 0; rank < mesh->world_size(); ++rank) {
    const double own = wait[static_cast<std::size_t>(rank)];
    const auto [group, is_new] = least.emplace(mesh->first(axes_of(whom), rank), own);
    group->second = std::min(group->second, own);
  }
  if (least.size() < 2) return "";
  const auto most = std::max_element(
      least.begin(), least.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  std::vector<double> sorted;
  for (const auto& [first, seconds_of_group] : least)
    sorted.push_back(seconds_of_group);
  std::sort(sorted.begin(), sorted.end());
  if (most->second < (1.0 + kSlower) * sorted[(sorted.size() - 1) / 2]) return "";
  const std::vector<int> members = mesh->members(axes_of(whom), most->first);
  return fmt::format("; it takes longest among ranks {}{}", fmt::join(members, ", "),
                     hosts_of(run, members));
}

/// Seconds a step that a rank elsewhere waits for bytes from and to each host, by its name; none
/// where the run has one host.
std::map<std::string, double> waits_for_hosts(const RunOverview& run, const RankSeconds& ranks) {
  const std::size_t count = ranks.bytes_waited_for.size();
  if (run.starts.empty() || run.starts.back().hosts.size() != count) return {};
  struct HostWait {
    std::size_t ranks = 0;
    double seconds = 0.0;
  };
  std::map<std::string, HostWait> hosts;
  for (std::size_t rank = 0; rank < count; ++rank) {
    HostWait& host = hosts[run.starts.back().hosts[rank]];
    ++host.ranks;
    host.seconds += ranks.bytes_waited_for[rank];
  }
  if (hosts.size() < 2) return {};
  std::map<std::string, double> waits;
  for (const auto& [name, host] : hosts)
    waits[name] = host.seconds / static_cast<double>(count - host.ranks);
  return waits;
}

/// Names the host whose bytes the others wait for, if there is one. That of a rank that is slow in
/// everything says nothing of its link.
void add_slow_link(const RunOverview& run,
                   const StepAccount& account,
                   const RankSeconds& ranks,
                   const std::string& host_of_slow_rank,
                   std::vector<Finding>& findings) {
  constexpr double kLonger = 2.0;  // than for the median of the other hosts
  const std::map<std::string, double> waits = waits_for_hosts(run, ranks);
  if (waits.empty()) return;
  const auto most = std::max_element(
      waits.begin(), waits.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  const double share = most->second * static_cast<double>(account.steps()) / account.wall;
  if (share < kWorthNaming || most->first == host_of_slow_rank) return;
  Finding finding{.what = {},
                  .share = std::min(1.0, share),
                  .advice =
                      "Look at the rate, errors and other traffic of its network card and "
                      "switch port"};
  if (waits.size() == 2) {
    finding.what = fmt::format("ranks wait for bytes between {} and {}", waits.begin()->first,
                               waits.rbegin()->first);
    finding.advice =
        "Look at the rate of the network between them; groups that send most belong "
        "within a host";
  } else {
    std::vector<double> others;
    for (const auto& [name, seconds] : waits) {
      if (name != most->first) others.push_back(seconds);
    }
    const double median = median_of(std::move(others));
    if (most->second < kLonger * median) return;
    finding.what = fmt::format(
        "ranks wait for bytes from and to {}, {:.1f} times as long as for "
        "those of other hosts: its link is slow",
        most->first, std::min(1000.0, most->second / std::max(median, 1e-6)));
    finding.gain = finding.share;
  }
  findings.push_back(std::move(finding));
}

/// A rank that computes clearly longer than the others of its stage; -1: none does.
struct SlowRank {
  int rank = -1;
  double slower_by = 0.0;
  double often = 0.0;  ///< in which share of the steps it is the slowest
};

SlowRank slow_rank(const RunOverview& run, const StepAccount& account, const RankSeconds& ranks) {
  const auto steps = static_cast<double>(account.steps());
  const int most_often = account.slowest_rank();
  const double often = static_cast<double>(account.slowest.at(most_often)) / steps;
  if (account.slower_by >= kSlower && often > 0.5) return {most_often, account.slower_by, often};
  // Where each step has another one, as steps are short, or the ranks share cores: by their means.
  if (ranks.computing.size() < 2) return {};
  const auto slowest = std::max_element(ranks.computing.begin(), ranks.computing.end());
  const int rank = static_cast<int>(slowest - ranks.computing.begin());
  const std::optional<Mesh> mesh = mesh_of(run, ranks.computing.size());
  const auto stage = [&](int of) { return mesh ? mesh->index(Axis::kPipeline, of) : 0; };
  std::vector<double> others;
  for (int other = 0; other < static_cast<int>(ranks.computing.size()); ++other) {
    if (other != rank && stage(other) == stage(rank))
      others.push_back(ranks.computing[static_cast<std::size_t>(other)]);
  }
  if (others.empty()) return {};
  const double median = median_of(std::move(others));
  if (!(*slowest >= (1.0 + kSlower) * median) || median <= 0.0) return {};
  const auto found = account.slowest.find(rank);
  return {rank, *slowest / median - 1.0,
          found == account.slowest.end() ? 0.0 : static_cast<double>(found->second) / steps};
}

void add_straggler(const RunOverview& run,
                   const StepAccount& account,
                   const SlowRank& slow,
                   std::vector<Finding>& findings) {
  const double share = account.straggler / account.wall;
  if (slow.rank >= 0) {
    findings.push_back(
        {.what =
             fmt::format("{} computes {:.0f} % longer than the others, as the slowest in "
                         "{:.0f} % of the steps, and they wait for it",
                         rank_name(run, slow.rank), percent(slow.slower_by), percent(slow.often)),
         .share = share,
         .advice = "Look at what else runs on its host, at its clocks and at its temperature; "
                   "--exclude leaves it out",
         .gain = share});
  } else {
    findings.push_back(
        {.what = "ranks wait for others that take longer, now one and now another",
         .share = share,
         .advice = "Samples of unequal length, other programs on the hosts, or too few threads "
                   "for the ranks of a host do that",
         .gain = share});
  }
}

void add_data(const RunOverview& run,
              const StepAccount& account,
              const RankSeconds& ranks,
              std::vector<Finding>& findings) {
  const double share = account.data / account.wall;
  std::string who;
  if (ranks.data.size() > 1) {
    const auto most = std::max_element(ranks.data.begin(), ranks.data.end());
    const double mean = std::accumulate(ranks.data.begin(), ranks.data.end(), 0.0) /
                        static_cast<double>(ranks.data.size());
    if (*most > 1.5 * mean) {
      who = fmt::format("; longest on {}",
                        rank_name(run, static_cast<int>(most - ranks.data.begin())));
    }
  }
  findings.push_back({.what = "ranks wait for their next batch" + who,
                      .share = share,
                      .advice = "The disk with data.train, or its network, is slower than the "
                                "ranks read: keep a copy of the token files on the hosts",
                      .gain = share});
}

void add_data_parallel(const RunOverview& run,
                       const StepAccount& account,
                       const RankSeconds& ranks,
                       std::vector<Finding>& findings) {
  const double share =
      account.communication[static_cast<std::size_t>(WaitFor::kData)] / account.wall;
  const double compute = account.compute / account.wall;
  const int stage = static_cast<int>(number(run, "zero_optimization.stage", 0));
  Finding finding{.what = fmt::format("gradients{} travel between data-parallel ranks, and nothing "
                                      "hides them{}",
                                      stage == 0 ? "" : " and parameters",
                                      slowest_group(run, WaitFor::kData, ranks)),
                  .share = share,
                  .advice = {}};
  const auto prefetch = number_at(run.config, "zero_optimization.stage3_prefetch_bucket_size");
  if (!is_true(run, "zero_optimization.overlap_comm")) {
    finding.advice = "Let them travel while blocks compute";
    finding.sets = {"zero_optimization.overlap_comm=true"};
    finding.gain = std::min(share, 0.7 * compute);
  } else if (stage == 3 && prefetch && *prefetch == 0.0) {
    finding.advice = "Gather parameters ahead of their use";
    finding.sets = {"zero_optimization.stage3_prefetch_bucket_size=5e7"};
    finding.gain = share / 2.0;
  } else if (stage == 3 && number(run, "zero_optimization.zero_hpz_partition_size", 1) <= 1 &&
             !run.starts.empty() &&
             std::set(run.starts.back().hosts.begin(), run.starts.back().hosts.end()).size() > 1) {
    finding.advice = "Gather within a host after the first time";
    finding.sets = {
        fmt::format("zero_optimization.zero_hpz_partition_size={}",
                    std::count(run.starts.back().hosts.begin(), run.starts.back().hosts.end(),
                               run.starts.back().hosts.front()))};
    finding.gain = share / 2.0;
  } else {
    const auto micro_batches =
        static_cast<std::int64_t>(number(run, "gradient_accumulation_steps", 1));
    const auto batch = static_cast<std::int64_t>(number(run, "train_batch_size", 1));
    finding.advice = "More micro-batches in a step make it rarer, with a larger batch";
    finding.sets = {fmt::format("gradient_accumulation_steps={}", 2 * micro_batches),
                    fmt::format("train_batch_size={}", 2 * batch)};
    finding.gain = share / 2.0;
  }
  findings.push_back(std::move(finding));
}

void add_within_layers(const RunOverview& run,
                       const StepAccount& account,
                       const RankSeconds& ranks,
                       WaitFor whom,
                       std::vector<Finding>& findings) {
  const double share = account.communication[static_cast<std::size_t>(whom)] / account.wall;
  Finding finding{.what = {}, .share = share, .advice = {}, .gain = share / 2.0};
  const std::string slowest = slowest_group(run, whom, ranks);
  switch (whom) {
    case WaitFor::kTensor:
      finding.what = "activations travel between tensor-parallel ranks" + slowest;
      finding.advice =
          "They pay where links are fast: fewer tensor-parallel ranks, more that hold other data";
      finding.sets = {
          fmt::format("tensor_parallel.size={}", std::max(1, degree(run, "tensor") / 2))};
      break;
    case WaitFor::kContext:
      finding.what =
          "keys and values travel between ranks with other tokens of a sequence" + slowest;
      finding.advice = "They pay for long sequences: fewer such ranks, more that hold other data";
      finding.sets = {
          fmt::format("context_parallel.size={}", std::max(1, degree(run, "context") / 2))};
      break;
    case WaitFor::kExperts:
      finding.what = "rows travel to experts on other ranks and back";
      finding.advice =
          "Let them travel while the shared experts compute, or keep experts on fewer "
          "ranks";
      finding.sets = {
          fmt::format("expert_parallel.size={}", std::max(1, degree(run, "experts") / 2))};
      break;
    case WaitFor::kData:
    case WaitFor::kPipeline:
    case WaitFor::kAll:
      finding.what = "norms and reports travel between all ranks";
      finding.advice = "Every step takes a few such messages: larger steps make them rarer";
      break;
  }
  findings.push_back(std::move(finding));
}

/// The stage whose ranks compute longest, and by which share longer than the mean of all.
struct LongestStage {
  int stage = 0;
  double excess = 0.0;
};
LongestStage longest_stage(const RunOverview& run, const RankSeconds& ranks) {
  const std::optional<Mesh> mesh = mesh_of(run, ranks.computing.size());
  if (!mesh) return {};
  const int stages = mesh->degree(Axis::kPipeline);
  std::vector<double> seconds(static_cast<std::size_t>(stages), 0.0);  // of all ranks of a stage
  for (int rank = 0; rank < mesh->world_size(); ++rank) {
    seconds[static_cast<std::size_t>(mesh->index(Axis::kPipeline, rank))] +=
        ranks.computing[static_cast<std::size_t>(rank)];
  }
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / stages;
  const auto most = std::max_element(seconds.begin(), seconds.end());
  return {.stage = static_cast<int>(most - seconds.begin()),
          .excess = mean > 0.0 ? *most / mean - 1.0 : 0.0};
}

void add_pipeline(const RunOverview& run,
                  const StepAccount& account,
                  const RankSeconds& ranks,
                  std::vector<Finding>& findings) {
  const int stages = degree(run, "pipeline");
  const double share = account.pipeline / account.wall;
  const double idle = planned_idle_share(run);
  const LongestStage longest = longest_stage(run, ranks);
  if (longest.excess >= kSlower) {
    const auto pipeline = run.config.is_object() ? run.config.find("pipeline") : run.config.end();
    const bool chosen = pipeline != run.config.end() && pipeline->contains("partition");
    findings.push_back({.what = fmt::format("stage {} computes {:.0f} % longer than the mean of "
                                            "the stages, and the others wait for it",
                                            longest.stage, percent(longest.excess)),
                        .share = share,
                        .advice = chosen ? "Let dstrain divide the blocks" : "Give it fewer blocks",
                        .sets = chosen ? std::vector<std::string>{"pipeline.partition=null"}
                                       : std::vector<std::string>{},
                        .gain = std::max(0.0, share - idle)});
    return;
  }
  const auto micro_batches =
      static_cast<std::int64_t>(number(run, "gradient_accumulation_steps", 1));
  const auto size = static_cast<std::int64_t>(number(run, "train_micro_batch_size_per_gpu", 1));
  const double others = stages - 1.0;
  const double after = others / (2.0 * static_cast<double>(micro_batches) + others);
  Finding finding{
      .what = fmt::format("stages wait for each other; the schedule alone leaves them idle for "
                          "{:.1f} %",
                          percent(idle)),
      .share = share,
      .advice = "More micro-batches in a step shorten its ends",
      .gain = std::max(0.0, share - after)};
  if (size >= 2) {
    finding.sets = {fmt::format("gradient_accumulation_steps={}", 2 * micro_batches),
                    fmt::format("train_micro_batch_size_per_gpu={}", size / 2)};
  } else {
    const auto batch = static_cast<std::int64_t>(number(run, "train_batch_size", 1));
    finding.sets = {fmt::format("gradient_accumulation_steps={}", 2 * micro_batches),
                    fmt::format("train_batch_size={}", 2 * batch)};
  }
  findings.push_back(std::move(finding));
}

void add_saves(const RunOverview& run, const StepAccount& account, std::vector<Finding>& findings) {
  const double share = account.checkpoint / account.wall;
  Finding finding{.what = "training stands still while checkpoints are written",
                  .share = share,
                  .advice = {},
                  .gain = share};
  const auto interval = static_cast<std::int64_t>(number(run, "checkpoint.interval", 0));
  if (!is_true(run, "checkpoint.async")) {
    finding.advice = "Write them beside the steps, from a copy in host memory";
    finding.sets = {"checkpoint.async=true"};
  } else {
    finding.advice = "The disk is slower than they come: save less often";
    finding.sets = {fmt::format("checkpoint.interval={}", 2 * interval)};
    finding.gain = share / 2.0;
  }
  findings.push_back(std::move(finding));
}

}  // namespace

std::string rank_name(const RunOverview& run, int rank) {
  const bool knows =
      !run.starts.empty() && static_cast<std::size_t>(rank) < run.starts.back().hosts.size();
  return knows ? fmt::format("rank {} on {}", rank,
                             run.starts.back().hosts[static_cast<std::size_t>(rank)])
               : fmt::format("rank {}", rank);
}

double planned_idle_share(const RunOverview& run) {
  const double others = degree(run, "pipeline") - 1.0;
  const double work =
      number(run, "gradient_accumulation_steps", 1) * number(run, "pipeline.virtual_stages", 1);
  return others / (work + others);
}

std::vector<Finding> findings_of(const RunOverview& run,
                                 const StepAccount& account,
                                 const RankSeconds& ranks) {
  std::vector<Finding> findings;
  const auto is_worth = [&](double seconds) { return seconds >= kWorthNaming * account.wall; };
  std::string host_of_slow_rank;
  if (is_worth(account.straggler)) {
    const SlowRank slow = slow_rank(run, account, ranks);
    add_straggler(run, account, slow, findings);
    if (slow.rank >= 0 && !run.starts.empty() &&
        static_cast<std::size_t>(slow.rank) < run.starts.back().hosts.size()) {
      host_of_slow_rank = run.starts.back().hosts[static_cast<std::size_t>(slow.rank)];
    }
  }
  if (is_worth(account.data)) add_data(run, account, ranks, findings);
  add_slow_link(run, account, ranks, host_of_slow_rank, findings);
  for (std::size_t whom = 0; whom < kWaitsFor; ++whom) {
    if (!is_worth(account.communication[whom])) continue;
    if (static_cast<WaitFor>(whom) == WaitFor::kData) {
      add_data_parallel(run, account, ranks, findings);
    } else {
      add_within_layers(run, account, ranks, static_cast<WaitFor>(whom), findings);
    }
  }
  if (is_worth(account.pipeline)) add_pipeline(run, account, ranks, findings);
  if (is_worth(account.checkpoint)) add_saves(run, account, findings);
  if (is_worth(account.evaluation)) {
    const auto interval = static_cast<std::int64_t>(number(run, "training.eval_interval", 0));
    findings.push_back({.what = "training stands still for evaluations",
                        .share = account.evaluation / account.wall,
                        .advice = "Evaluate less often, or on fewer batches",
                        .sets = {fmt::format("training.eval_interval={}", 2 * interval)},
                        .gain = account.evaluation / account.wall / 2.0});
  }
  if (is_worth(account.unexplained() + account.host)) {
    findings.push_back(
        {.what = "rank 0 does other things between steps: it writes metrics and logs",
         .share = (account.unexplained() + account.host) / account.wall,
         .advice = "A slow disk under training.output_dir does that"});
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.share > b.share; });
  return findings;
}

}  // namespace dstrain
