#include "cmd/launch/job_device.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dstrain {
namespace {

using launcher::GpuReport;
using launcher::HostFailure;

constexpr const char* kToCpus = "compute on CPUs with --set training.device=cpu";
constexpr int kFirstWithF16 = 70;
constexpr int kFirstWithBf16 = 80;

/// "2 × NVIDIA T4", in the order of the GPUs.
std::string count_models(const std::vector<std::string>& models) {
  std::vector<std::pair<std::string, int>> counts;
  for (const std::string& model : models) {
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& count) { return count.first == model; });
    if (known == counts.end()) {
      counts.emplace_back(model, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [model, count] : counts)
    text += fmt::format("{}{} × {}", text.empty() ? "" : ", ", count, model);
  return text;
}

std::string gpus_text(const std::vector<GpuReport>& gpus) {
  std::vector<std::string> models;
  for (const GpuReport& gpu : gpus)
    models.push_back(gpu.model);
  return count_models(models);
}

std::string describe_unusable(int index, const GpuReport& gpu) {
  return fmt::format("cuda:{}, {}, cannot be used: {}", index, gpu.model, gpu.unusable);
}

/// Slots for which there is no GPU of that number.
std::string describe_missing(const std::vector<int>& slots, const std::vector<GpuReport>& gpus) {
  return fmt::format("there is no GPU for slot{} {}: it has {} ({})", slots.size() == 1 ? "" : "s",
                     fmt::join(slots, ", "), gpus.size(), gpus_text(gpus));
}

using Gpu = std::pair<std::string, std::string>;  // machine, UUID
Gpu identity(const RankSeat& seat) {
  return {seat.machine, seat.gpu->uuid};
}

/// Hosts in their order, with the first seat of each that `pick` takes.
template <typename Pick>
std::vector<const RankSeat*> first_of_hosts(std::span<const RankSeat> seats, const Pick& pick) {
  std::vector<const RankSeat*> firsts;
  std::set<std::string> seen;
  for (const RankSeat& seat : seats) {
    if (pick(seat) && seen.insert(seat.host).second) firsts.push_back(&seat);
  }
  return firsts;
}

std::string host_names(const std::vector<const RankSeat*>& seats) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(kShown, seats.size()); ++i)
    names.push_back(seats[i]->host);
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (seats.size() > kShown) text += fmt::format(" and {} more", seats.size() - kShown);
  return text;
}

/// The failures of ranks that are to compute on GPUs.
std::vector<HostFailure> find_failures(std::span<const RankSeat> seats, bool may_share) {
  std::vector<HostFailure> failures;
  std::set<std::pair<std::string, std::string>> told;
  std::map<Gpu, const RankSeat*> holders;
  for (const RankSeat& seat : seats) {
    if (!seat.gpu) {
      if (!told.emplace(seat.host, seat.why_none).second) continue;
      failures.push_back(
          {.host = seat.host, .phase = "GPUs", .what = seat.why_none, .fix = seat.mend});
      continue;
    }
    const auto [holder, is_new] = holders.try_emplace(identity(seat), &seat);
    if (is_new || may_share) continue;
    const std::string what =
        fmt::format("cuda:{}, {}, is taken by two ranks{}", seat.gpu_index, seat.gpu->uuid,
                    holder->second->host == seat.host
                        ? ""
                        : fmt::format(", as {} is the same machine", holder->second->host));
    if (!told.emplace(seat.host, what).second) continue;
    failures.push_back({.host = seat.host,
                        .phase = "GPUs",
                        .what = what,
                        .fix = "give each rank a GPU of its own, or let them take turns with "
                               "--share-gpus (DSTRAIN_SHARE_GPUS=1)"});
  }
  return failures;
}

std::string common_name(const std::vector<std::string>& names) {
  const std::set<std::string> different(names.begin(), names.end());
  return fmt::format("{}", fmt::join(different, ", "));
}

/// Absent where ranks of one host are not neighbours.
std::optional<int> ranks_per_host(std::span<const RankSeat> seats) {
  std::vector<int> ranks;
  std::set<std::string> hosts;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (i == 0 || seats[i].host != seats[i - 1].host) {
      if (!hosts.insert(seats[i].host).second) return std::nullopt;
      ranks.push_back(0);
    }
    ++ranks.back();
  }
  return common_ranks(ranks);
}

MachineFacts gpu_facts(std::span<const RankSeat> seats, const std::set<std::string>& left_out) {
  MachineFacts facts{.cuda = true,
                     .multiplies_bf16 = true,
                     .multiplies_f16 = true,
                     .ranks_per_host = ranks_per_host(seats)};
  const std::vector<int> sharers = ranks_on_gpus(seats);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    const RankSeat& seat = seats[i];
    if (!seat.gpu || left_out.contains(seat.host)) continue;
    names.push_back(seat.gpu->model);
    facts.multiplies_bf16 = facts.multiplies_bf16 && seat.gpu->capability >= kFirstWithBf16;
    facts.multiplies_f16 = facts.multiplies_f16 && seat.gpu->capability >= kFirstWithF16;
    const std::int64_t share = seat.gpu->total_bytes / sharers[i];
    facts.memory_bytes = std::min(facts.memory_bytes.value_or(share), share);
  }
  facts.name = common_name(names);
  return facts;
}

MachineFacts processor_facts(std::span<const RankSeat> seats) {
  MachineFacts facts{.multiplies_bf16 = true, .ranks_per_host = ranks_per_host(seats)};
  std::map<std::string, std::int64_t> ranks;  // by machine
  for (const RankSeat& seat : seats)
    ++ranks[seat.machine];
  std::vector<std::string> names;
  for (const RankSeat& seat : seats) {
    names.push_back(seat.processor.model);
    facts.multiplies_bf16 = facts.multiplies_bf16 && seat.processor.multiplies_bf16;
    const std::int64_t share = seat.processor.memory_bytes / ranks[seat.machine];
    facts.memory_bytes = std::min(facts.memory_bytes.value_or(share), share);
  }
  facts.name = common_name(names);
  return facts;
}

JobDevice on_processors(std::span<const RankSeat> seats, const std::string& why) {
  JobDevice device{.facts = processor_facts(seats), .line = {}, .failures = {}};
  device.line =
      fmt::format("device=cpu ranks={} processor=\"{}\"{}", seats.size(), device.facts.name, why);
  return device;
}

JobDevice on_gpus(std::span<const RankSeat> seats, bool may_share, const std::string& why) {
  JobDevice device{.facts = {}, .line = {}, .failures = find_failures(seats, may_share)};
  std::set<std::string> left_out;
  for (const HostFailure& failure : device.failures)
    left_out.insert(failure.host);
  device.facts = gpu_facts(seats, left_out);
  std::vector<std::string> models;
  std::set<Gpu> counted;
  for (const RankSeat& seat : seats) {
    if (seat.gpu && counted.insert(identity(seat)).second) models.push_back(seat.gpu->model);
  }
  device.line =
      fmt::format("device=cuda ranks={} gpus=\"{}\"{}", seats.size(), count_models(models), why);
  return device;
}

}  // namespace

int gpu_of_slot(int slot, std::size_t num_gpus, bool may_share) {
  return may_share ? slot % static_cast<int>(num_gpus) : slot;
}

std::vector<RankSeat> seats_of(const launcher::Host& host,
                               const std::string& machine,
                               const launcher::HostAnswer& gpus,
                               const launcher::ProcessorReport& processor,
                               bool may_share) {
  RankSeat seat{.host = host.name, .machine = machine, .processor = processor};
  std::vector<int> missing;
  std::string unusable;
  for (std::size_t i = 0; i < gpus.gpus.size(); ++i) {
    if (gpus.gpus[i].unusable.empty()) {
      seat.host_has_gpus = true;
    } else if (unusable.empty()) {
      unusable = describe_unusable(static_cast<int>(i), gpus.gpus[i]);
    }
  }
  const auto in_range = [&](int index) {
    return static_cast<std::size_t>(index) < gpus.gpus.size();
  };
  for (const int slot : host.slots) {
    if (!gpus.gpus.empty() && !in_range(gpu_of_slot(slot, gpus.gpus.size(), may_share))) {
      missing.push_back(slot);
    }
  }
  std::vector<RankSeat> seats;
  for (const int slot : host.slots) {
    RankSeat& rank = seats.emplace_back(seat);
    if (!seat.host_has_gpus) {
      rank.why_none = gpus.error.empty() ? unusable : gpus.error;
      rank.mend = fmt::format("choose hosts with GPUs, or {}", kToCpus);
      continue;
    }
    rank.gpu_index = gpu_of_slot(slot, gpus.gpus.size(), may_share);
    if (!in_range(rank.gpu_index)) {
      rank.why_none = describe_missing(missing, gpus.gpus);
      rank.mend = fmt::format(
          "give it as many slots as GPUs, let ranks take turns with --share-gpus, or {}", kToCpus);
      continue;
    }
    const GpuReport& gpu = gpus.gpus[static_cast<std::size_t>(rank.gpu_index)];
    if (!gpu.unusable.empty()) {
      rank.why_none = describe_unusable(rank.gpu_index, gpu);
      rank.mend = fmt::format("leave it out with --exclude {}:{}, or {}", host.name, slot, kToCpus);
      continue;
    }
    rank.gpu = gpu;
  }
  return seats;
}

std::vector<int> ranks_on_gpus(std::span<const RankSeat> seats) {
  std::map<Gpu, int> counts;
  for (const RankSeat& seat : seats) {
    if (seat.gpu) ++counts[identity(seat)];
  }
  std::vector<int> ranks;
  for (const RankSeat& seat : seats)
    ranks.push_back(seat.gpu ? counts[identity(seat)] : 0);
  return ranks;
}

JobDevice decide_device(DeviceChoice wish, std::span<const RankSeat> seats, bool may_share) {
  if (wish == DeviceChoice::kCpu) return on_processors(seats, "");
  const auto without =
      first_of_hosts(seats, [](const RankSeat& seat) { return !seat.host_has_gpus; });
  const auto with = first_of_hosts(seats, [](const RankSeat& seat) { return seat.host_has_gpus; });
  if (wish == DeviceChoice::kAuto && with.empty()) {
    return on_processors(seats, fmt::format(": training.device is \"auto\", and {}{}",
                                            without.size() > 1 ? "no host has a GPU to use: " : "",
                                            without.front()->why_none));
  }
  const bool is_mixed = wish == DeviceChoice::kAuto && !without.empty();
  JobDevice device = on_gpus(seats, may_share,
                             wish == DeviceChoice::kAuto
                                 ? ": training.device is \"auto\", and there are GPUs to use"
                                 : "");
  for (HostFailure& failure : device.failures) {
    const bool has_none = std::any_of(without.begin(), without.end(), [&](const RankSeat* seat) {
      return seat->host == failure.host;
    });
    if (!has_none) continue;
    if (is_mixed) {
      failure.what = fmt::format(
          "training.device is \"auto\", and {}; but {} {} GPUs, and a job computes on one or the "
          "other",
          failure.what, host_names(with), with.size() == 1 ? "has" : "have");
      failure.fix = fmt::format("--exclude {}, or {}", failure.host, kToCpus);
    } else {
      failure.what = fmt::format("training.device is \"cuda\", but {}", failure.what);
    }
  }
  return device;
}

MachineFacts assumed_facts(DeviceChoice wish, const std::vector<launcher::Host>& hosts) {
  const bool is_cuda = wish == DeviceChoice::kCuda;
  std::vector<int> ranks;
  for (const launcher::Host& host : hosts)
    ranks.push_back(static_cast<int>(host.slots.size()));
  return {.cuda = is_cuda,
          .name = "",
          .multiplies_bf16 = is_cuda,
          .multiplies_f16 = is_cuda,
          .memory_bytes = std::nullopt,
          .ranks_per_host = common_ranks(ranks)};
}

}  // namespace dstrain
