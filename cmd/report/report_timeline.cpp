#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cmd/report/report_parts.h"
#include "cmd/svg_canvas.h"
#include "engine/base/storage_error.h"
#include "engine/train/trace/trace_file.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kMostDrawnRanks = 16;

/// The colour of what a rank does, and how deep it lies: what lies deeper is painted later.
struct Paint {
  const char* look;
  const char* words;
  int depth;
};

const std::map<std::string, Paint>& paints() {
  static const std::map<std::string, Paint> all = {{"load", {"data", "data", 1}},
                                                   {"forward", {"forward", "forward", 1}},
                                                   {"backward", {"backward", "backward", 1}},
                                                   {"optimizer", {"update", "update", 1}},
                                                   {"report", {"rest", "report", 1}},
                                                   {"evaluate", {"eval", "evaluation", 1}},
                                                   {"save", {"save", "checkpoint", 1}}};
  return all;
}

constexpr Paint kTransfer{"run1", "transfers and waits for them", 2};

struct DrawnEvent {
  int rank = 0;
  int thread = 0;
  double begin = 0.0;  ///< microseconds
  double end = 0.0;
  Paint paint{};
  std::string tooltip;
};

/// The rows of a picture, and what is on them, in a step's time.
struct StepTimeline {
  std::int64_t step = 0;
  double begin = std::numeric_limits<double>::max();
  double end = 0.0;
  std::vector<std::pair<int, int>> rows;  ///< rank and thread
  std::map<std::pair<int, int>, std::string> names;
  std::vector<DrawnEvent> events;
};

std::optional<fs::path> newest_trace(const fs::path& run) {
  std::optional<fs::path> newest;
  fs::file_time_type time{};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "traces", none)) {
    const auto written = fs::last_write_time(entry.path() / kTraceIndex, none);
    if (none) continue;
    if (!newest || written > time) std::tie(newest, time) = std::pair(entry.path(), written);
  }
  return newest;
}

std::string time_words(double microseconds) {
  return microseconds < 1000.0 ? fmt::format("{:.0f} µs", microseconds)
                               : fmt::format("{:.2f} ms", microseconds / 1000.0);
}

void take_event(const Json& event, int rank, StepTimeline& timeline) {
  const std::string name = event.at("name");
  const int thread = event.at("tid");
  if (name == "thread_name") timeline.names[{rank, thread}] = event.at("args").at("name");
  if (event.at("ph") != "X") return;
  const double begin = event.at("ts");
  const double end = begin + event.at("dur").get<double>();
  const Json& args = event.at("args");
  if (name == "step" && args.value("number", std::int64_t{0}) == timeline.step) {
    timeline.begin = std::min(timeline.begin, begin);
    timeline.end = std::max(timeline.end, end);
  }
  const bool is_transfer = event.at("cat") == "wait" || args.contains("group");
  const auto paint = paints().find(name);
  if (!is_transfer && paint == paints().end()) return;
  std::string tooltip = fmt::format("rank {}: {}, {}", rank, name, time_words(end - begin));
  if (args.contains("number")) tooltip += fmt::format(", {}", args["number"].get<std::int64_t>());
  if (args.contains("bytes")) {
    tooltip += fmt::format(", {} bytes for {}", args["bytes"].get<std::int64_t>(),
                           args.value("for", std::string()));
  }
  timeline.events.push_back({.rank = rank,
                             .thread = thread,
                             .begin = begin,
                             .end = end,
                             .paint = is_transfer ? kTransfer : paint->second,
                             .tooltip = std::move(tooltip)});
}

/// The last step of a trace. Throws StorageError and Json::exception where its files are damaged.
StepTimeline timeline_of(const fs::path& folder) {
  const TraceIndex index = read_trace_index(folder);
  StepTimeline timeline{.step = index.steps.last};
  for (std::size_t i = 0; i < std::min(index.ranks.size(), kMostDrawnRanks); ++i) {
    const int rank = index.ranks[i];
    for (const std::string& line : read_rank_events(folder / rank_file_name(rank))) {
      take_event(Json::parse(line), rank, timeline);
    }
  }
  // The report that follows a step belongs to it.
  for (const DrawnEvent& event : timeline.events) {
    if (event.tooltip.find(": report,") != std::string::npos && event.begin <= timeline.end + 1e3 &&
        event.end > timeline.end && event.begin > timeline.begin) {
      timeline.end = event.end;
    }
  }
  std::erase_if(timeline.events, [&](const DrawnEvent& event) {
    return event.end <= timeline.begin || event.begin >= timeline.end;
  });
  for (const DrawnEvent& event : timeline.events) {
    const std::pair row(event.rank, event.thread);
    if (std::find(timeline.rows.begin(), timeline.rows.end(), row) == timeline.rows.end()) {
      timeline.rows.push_back(row);
    }
  }
  std::sort(timeline.rows.begin(), timeline.rows.end());
  std::stable_sort(
      timeline.events.begin(), timeline.events.end(),
      [](const DrawnEvent& a, const DrawnEvent& b) { return a.paint.depth < b.paint.depth; });
  return timeline;
}

std::string picture_of(const StepTimeline& timeline, const std::string& run) {
  constexpr double kWidth = 1280.0;
  constexpr double kLeft = 150.0;
  constexpr double kRow = 20.0;
  const double right = kWidth - 12.0;
  const double height = kRow * static_cast<double>(timeline.rows.size()) + 30.0;
  const double scale = (right - kLeft) / (timeline.end - timeline.begin);
  SvgCanvas svg = SvgCanvas::in_page(kWidth, height, "Timeline of a step");
  std::map<std::string, Paint> used;
  for (std::size_t i = 0; i < timeline.rows.size(); ++i) {
    const auto& [rank, thread] = timeline.rows[i];
    const bool is_first = i == 0 || timeline.rows[i - 1].first != rank;
    const double y = kRow * static_cast<double>(i);
    const auto name = timeline.names.find(timeline.rows[i]);
    const std::string words = name == timeline.names.end() ? "" : name->second;
    svg.text(
        kLeft - 8.0, y + 14.0,
        {.size = 11.0, .anchor = Anchor::kEnd, .look = is_first ? "ink" : "soft"},
        is_first ? fmt::format("rank {}", rank) + (words == "compute" ? "" : ", " + words) : words);
    svg.line(kLeft, y + kRow, right, y + kRow, "class=\"grid\"");
    for (const DrawnEvent& event : timeline.events) {
      if (std::pair(event.rank, event.thread) != timeline.rows[i]) continue;
      used.emplace(event.paint.words, event.paint);
      const double begin = std::max(event.begin, timeline.begin);
      const double end = std::min(event.end, timeline.end);
      const double inset = event.paint.depth == 1 ? 2.0 : 5.0;
      svg.box({kLeft + (begin - timeline.begin) * scale, y + inset,
               std::max(0.4, (end - begin) * scale), kRow - 2.0 * inset},
              fmt::format("fill=\"var(--{})\"", event.paint.look), event.tooltip);
    }
  }
  svg.text(kLeft, height - 8.0, {.size = 11.0, .look = "soft"}, "0");
  svg.text(right, height - 8.0, {.size = 11.0, .anchor = Anchor::kEnd, .look = "soft"},
           time_words(timeline.end - timeline.begin));
  std::string key;
  for (const auto& [words, paint] : used) {
    key +=
        fmt::format("<span style=\"white-space:nowrap\"><i style=\"--c:var(--{})\"></i>{}</span> ",
                    paint.look, words);
  }
  return fmt::format(
      "<figure><figcaption>Step {}{} <span class=\"soft\">all clocks on rank 0's</span>"
      "</figcaption><div class=\"scroll\"><div style=\"min-width:640px\">{}</div></div>"
      "<div class=\"key\">{}</div></figure>\n",
      timeline.step, escape_xml(", " + run), std::move(svg).finish(), key);
}

}  // namespace

std::string timeline_part(const ReportedRuns& runs) {
  std::string html;
  for (const ReportedRun& run : runs) {
    const auto folder = newest_trace(run.overview.status.folder);
    if (!folder) continue;
    try {
      const StepTimeline timeline = timeline_of(*folder);
      if (timeline.end > timeline.begin && !timeline.rows.empty()) {
        html += picture_of(timeline, run.name);
      }
    } catch (const StorageError& error) {
      html += fmt::format("<p>{}</p>\n", escape_xml(error.what()));
    } catch (const Json::exception&) {
      html += fmt::format("<p>{} cannot be read.</p>\n", escape_xml(folder->string()));
    }
  }
  return html.empty() ? "" : "<h2>Timeline of a step</h2>\n" + html;
}

}  // namespace dstrain
