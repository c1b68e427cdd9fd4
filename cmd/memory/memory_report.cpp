#include "cmd/memory/memory_report.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/memory/memory_table.h"
#include "cmd/run_summary.h"
#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

std::string overhead_text(const std::vector<Overhead>& parts) {
  std::string text;
  std::size_t width = 0;
  for (const Overhead& part : parts) {
    width = std::max(width, part.what.size());
  }
  for (const Overhead& part : parts) {
    text +=
        fmt::format("  {:<{}}  {:>10}  {}\n", part.what, width, size_text(part.bytes), part.source);
  }
  return text;
}

/// The step's in-use bytes as a line of bars; each column shows the most of its share of time.
std::string sparkline(const MemoryTimeline& timeline) {
  constexpr std::size_t kColumns = 72;
  constexpr std::array kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::array<std::int64_t, kColumns> most{};
  const std::vector<MemoryMoment>& moments = timeline.moments;
  std::int64_t least = timeline.held.total();
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const double end = i + 1 < moments.size() ? moments[i + 1].begin : 1.0;
    const auto column = [](double share) {
      return std::min(static_cast<std::size_t>(share * kColumns), kColumns - 1);
    };
    for (std::size_t c = column(moments[i].begin); c <= column(end); ++c) {
      most[c] = std::max(most[c], moments[i].in_use.total());
    }
    least = std::min(least, moments[i].in_use.total());
  }
  const auto range =
      static_cast<double>(std::max<std::int64_t>(1, moments[timeline.peak].in_use.total() - least));
  std::string line;
  for (const std::int64_t bytes : most) {
    const double height = static_cast<double>(std::max<std::int64_t>(0, bytes - least)) / range;
    line += kBars[static_cast<std::size_t>(height * (kBars.size() - 1) + 0.5)];
  }
  return line;
}

std::string timeline_text(const MemoryEstimate& estimate) {
  const MemoryTimeline& timeline = estimate.timeline;
  const MemoryMoment& peak = timeline.highest();
  std::int64_t least = peak.in_use.total();
  for (const MemoryMoment& moment : timeline.moments) {
    least = std::min(least, moment.in_use.total());
  }
  std::string standing;
  for (const MemoryComponent component : kMemoryComponents) {
    if (peak.in_use[component] > 0) {
      standing += fmt::format("{}{} {}", standing.empty() ? "" : ", ", name_of(component),
                              size_text(peak.in_use[component]));
    }
  }
  return fmt::format(
      "In use during a step on rank {}, from {} to {} of the {} that it holds all the time:\n"
      "  {}\n"
      "highest after {:.0f} % of the step's work, in {}: {}\n",
      estimate.rank, size_text(least), size_text(peak.in_use.total()),
      size_text(timeline.held.total()), sparkline(timeline), 100.0 * peak.begin, estimate.peak,
      standing);
}

std::string host_text(const MemoryEstimate& estimate) {
  const int ranks = estimate.device.ranks_per_host;
  if (!estimate.device.cuda) {
    return fmt::format("Host memory: {}{}\n", size_text(estimate.host_bytes()),
                       ranks == 1 ? "" : fmt::format(" for {} such ranks on a host", ranks));
  }
  return fmt::format("Host memory beside the device's, {} for {} rank{} on a host; of one:\n{}",
                     size_text(estimate.host_bytes()), ranks, ranks == 1 ? "" : "s",
                     overhead_text(estimate.host));
}

std::string disk_text(const MemoryEstimate& estimate) {
  if (estimate.disk_bytes == 0) {
    return "";
  }
  const int ranks = estimate.device.ranks_per_host;
  return fmt::format("On the disk of {}: {} of what is offloaded{}\n", estimate.disk_folder,
                     size_text(estimate.host_disk_bytes()),
                     ranks == 1 ? "" : fmt::format(" for {} such ranks on a host", ranks));
}

/// "--set a=1 --set b=2".
std::string to_flags(const std::vector<std::string>& overrides) {
  std::string text;
  for (const std::string& override : overrides) {
    text += fmt::format("{}--set {}", text.empty() ? "" : " ", override);
  }
  return text;
}

std::string sequences(std::int64_t count) {
  return fmt::format("{} sequence{}", count, count == 1 ? "" : "s");
}

/// Tells how much of a host's memory and disk a remedy takes, where that is more than the config
/// takes as it is, and whether they are known to have it.
std::string on_hosts_text(const Remedy& remedy, const MemoryFit& now) {
  std::string parts;
  const auto add = [&](const char* of, std::int64_t bytes, bool more, bool unchecked) {
    if (!more) return;
    parts += fmt::format("{}{} of a host's {}{}", parts.empty() ? "" : ", ", size_text(bytes), of,
                         unchecked ? " (not checked: not known here)" : "");
  };
  add("memory", remedy.host_bytes, remedy.host_bytes > now.host_bytes, remedy.host_unchecked);
  add("disk", remedy.disk_bytes, remedy.disk_bytes > now.disk_bytes, remedy.disk_unchecked);
  return parts.empty() ? "" : fmt::format("                      takes {}\n", parts);
}

nlohmann::ordered_json json_of(const ComponentBytes& bytes) {
  nlohmann::ordered_json json;
  for (const MemoryComponent component : kMemoryComponents) {
    json[std::string(key_of(component))] = bytes[component];
  }
  json["total"] = bytes.total();
  return json;
}

nlohmann::ordered_json json_of(const std::vector<Overhead>& parts) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Overhead& part : parts) {
    json.push_back({{"what", part.what}, {"bytes", part.bytes}, {"source", part.source}});
  }
  return json;
}

nlohmann::ordered_json json_of(const std::vector<StageOutline>& stages) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageOutline& stage = stages[i];
    nlohmann::ordered_json chunks = nlohmann::ordered_json::array();
    for (const Range& blocks : stage.blocks) {
      chunks.push_back({{"begin", blocks.begin}, {"end", blocks.end}});
    }
    json.push_back({{"stage", i},
                    {"blocks", std::move(chunks)},
                    {"micro_batches_in_flight", stage.micro_batches_in_flight},
                    {"worst_rank", stage.worst_rank},
                    {"bytes", json_of(stage.bytes)}});
  }
  return json;
}

nlohmann::ordered_json json_of(const MemoryFit& fit, const MemoryLimit& limit) {
  nlohmann::ordered_json remedies = nlohmann::ordered_json::array();
  for (const Remedy& remedy : fit.remedies) {
    nlohmann::ordered_json unchecked = nlohmann::ordered_json::array();
    if (remedy.host_unchecked) unchecked.push_back("host_bytes");
    if (remedy.disk_unchecked) unchecked.push_back("disk_bytes");
    remedies.push_back({{"what", remedy.what},
                        {"set", remedy.overrides},
                        {"bytes", remedy.bytes},
                        {"host_bytes", remedy.host_bytes},
                        {"disk_bytes", remedy.disk_bytes},
                        {"unchecked", std::move(unchecked)},
                        {"relative_step_time", remedy.relative_step_time}});
  }
  nlohmann::ordered_json json = {{"limit", limit.name},
                                 {"limit_bytes", limit.bytes},
                                 {"bytes", fit.bytes},
                                 {"host_bytes", fit.host_bytes},
                                 {"disk_bytes", fit.disk_bytes},
                                 {"host_bytes_lacking", fit.host_bytes_lacking},
                                 {"disk_bytes_lacking", fit.disk_bytes_lacking},
                                 {"fits", fit.fits}};
  if (fit.fits) {
    json["largest_micro_batch"] = fit.largest_micro_batch;
    json["largest_micro_batch_of_this_batch"] = fit.largest_of_this_batch;
  } else {
    json["remedies"] = std::move(remedies);
  }
  json["longest_sequence"] = fit.longest_sequence;
  json["longest_sequence_limit"] = fit.config_allows_no_longer ? "config" : "memory";
  return json;
}

std::string longest_sequence_text(const MemoryFit& fit) {
  if (fit.longest_sequence == 0)
    return "No sequence that the config allows is short enough to fit.";
  return fmt::format("The longest sequence that fits: {} tokens{}.", fit.longest_sequence,
                     fit.config_allows_no_longer ? ", the most that the config allows" : "");
}

}  // namespace

std::string fit_text(const MemoryEstimate& estimate) {
  const MemoryFit& fit = estimate.fit.value();
  const MemoryLimit& limit = estimate.limit.value();
  const bool is_amount = !limit.name.empty() && std::isdigit(limit.name.front()) != 0;
  const std::string there = is_amount ? size_text(limit.bytes)
                                      : fmt::format("{} ({})", limit.name, size_text(limit.bytes));
  if (fit.fits) {
    return fmt::format(
        "Fits into {}: {} to spare. The largest micro-batch that fits: {}, or {} with the step's "
        "batch as it is. {}\n",
        there, size_text(limit.bytes - fit.bytes), sequences(fit.largest_micro_batch),
        fit.largest_of_this_batch, longest_sequence_text(fit));
  }
  std::string text;
  const auto refuse = [&](const std::string& place, std::int64_t too_much) {
    if (too_much <= 0) return;
    text += fmt::format("{}Does not fit {}: {} too much.", text.empty() ? "" : " ", place,
                        size_text(too_much));
  };
  refuse("into " + there, fit.bytes - limit.bytes);
  refuse("into a host's memory", fit.host_bytes_lacking);
  refuse("on a host's disk", fit.disk_bytes_lacking);
  text += " " + longest_sequence_text(fit);
  if (fit.remedies.empty()) {
    return text +
           " Nothing that was tried makes it fit, not even full recomputation, ZeRO stage 3, "
           "offloading to a disk, micro-batches of 1, and more tensor and pipeline ranks; use more "
           "ranks, a shorter "
           "data.sequence_length or a smaller model.\n";
  }
  text += " What would fit, cheapest first (step time predicted, relative to the present one):\n";
  for (const Remedy& remedy : fit.remedies) {
    text +=
        fmt::format("  {:>10}  × {:.2f}  {}\n                      {}\n", size_text(remedy.bytes),
                    remedy.relative_step_time, remedy.what, to_flags(remedy.overrides));
    text += on_hosts_text(remedy, fit);
  }
  return text;
}

std::string to_text(const MemoryEstimate& estimate, const Config& config) {
  std::string text = summary_text(estimate.outline, config);
  text +=
      fmt::format("memory      {} on rank {}, which holds most: {} planned, {} beside it\n\n{}\n",
                  size_text(estimate.bytes()), estimate.rank, size_text(estimate.planned_bytes),
                  size_text(total_bytes(estimate.overhead)), memory_table(estimate.outline));
  text += fmt::format("Beside the plan, on the {} of rank {}:\n{}\n",
                      estimate.device.cuda ? "GPU" : "host", estimate.rank,
                      overhead_text(estimate.overhead));
  text += host_text(estimate) + disk_text(estimate) + "\n" + timeline_text(estimate);
  if (estimate.fit) {
    text += "\n" + fit_text(estimate);
  }
  return text;
}

std::string to_json(const MemoryEstimate& estimate, const Config& config) {
  nlohmann::ordered_json json = summary_json(estimate.outline, config);
  const MemoryMoment& peak = estimate.timeline.highest();
  json["device"] = estimate.device.cuda ? "cuda" : "cpu";
  json["memory"] = {{"rank", estimate.rank},
                    {"bytes", estimate.bytes()},
                    {"planned", estimate.planned_bytes},
                    {"overhead", json_of(estimate.overhead)},
                    {"host", json_of(estimate.host)},
                    {"host_bytes", estimate.host_bytes()},
                    {"disk_bytes", estimate.host_disk_bytes()},
                    {"ranks_per_host", estimate.device.ranks_per_host}};
  json["peak_in_use"] = {
      {"where", estimate.peak}, {"share_of_step", peak.begin}, {"bytes", json_of(peak.in_use)}};
  json["stages"] = json_of(estimate.outline.stages);
  if (estimate.fit) {
    json["fit"] = json_of(*estimate.fit, *estimate.limit);
  }
  return json.dump(2) + "\n";
}

}  // namespace dstrain
