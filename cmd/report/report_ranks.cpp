#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "cmd/report/line_chart.h"
#include "cmd/report/report_parts.h"
#include "cmd/svg_canvas.h"
#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

std::string rank_bars(const ReportedRun& run) {
  const nlohmann::json line = last_step_line(run.overview.status.folder / "ranks.jsonl");
  constexpr std::size_t kMostRanks = 512;
  if (!line.is_object() || !line.contains("memory_bytes")) return "";
  const nlohmann::json& memory = line["memory_bytes"];
  std::vector<double> planned;
  std::vector<double> peak;
  try {
    planned = memory.at("planned").get<std::vector<double>>();
    const auto beside = memory.at("overhead").get<std::vector<double>>();
    peak = memory.at("peak").get<std::vector<double>>();
    if (planned.size() < 2 || planned.size() > kMostRanks || beside.size() != planned.size() ||
        peak.size() != planned.size()) {
      return "";
    }
    std::transform(planned.begin(), planned.end(), beside.begin(), planned.begin(), std::plus<>());
  } catch (const nlohmann::json::exception&) {
    return "";
  }
  const double most = std::max(*std::max_element(planned.begin(), planned.end()),
                               *std::max_element(peak.begin(), peak.end()));
  const SizeUnit unit = unit_for(std::llround(most));
  const auto size = static_cast<double>(unit.bytes);
  constexpr double kWidth = 640.0;
  constexpr double kHeight = 150.0;
  constexpr SvgBox kPlot{.x = 58.0, .y = 8.0, .width = 570.0, .height = 116.0};
  SvgCanvas svg = SvgCanvas::in_page(kWidth, kHeight, "Memory by rank");
  for (const double tick : round_ticks(0.0, most / size)) {
    const double y = kPlot.y + kPlot.height * (1.0 - tick * size / most);
    svg.line(kPlot.x, y, kPlot.x + kPlot.width, y, "class=\"grid\"");
    svg.text(kPlot.x - 6.0, y + 4.0, {.size = 11.0, .anchor = Anchor::kEnd, .look = "soft"},
             short_number(tick));
  }
  const double each = kPlot.width / static_cast<double>(planned.size());
  for (std::size_t rank = 0; rank < planned.size(); ++rank) {
    const double x = kPlot.x + each * static_cast<double>(rank);
    const double height = kPlot.height * peak[rank] / most;
    const double mark = kPlot.y + kPlot.height * (1.0 - planned[rank] / most);
    svg.box({x + each * 0.1, kPlot.y + kPlot.height - height, each * 0.8, height},
            "fill=\"var(--run0)\"",
            fmt::format("rank {}: peak {}, planned {}", rank, size_text(std::llround(peak[rank])),
                        size_text(std::llround(planned[rank]))));
    svg.line(x, mark, x + each, mark, "stroke=\"var(--ink)\" stroke-width=\"1.5\"");
  }
  svg.text(kPlot.x, kHeight - 6.0, {.size = 11.0, .look = "soft"}, "rank 0");
  svg.text(kPlot.x + kPlot.width, kHeight - 6.0,
           {.size = 11.0, .anchor = Anchor::kEnd, .look = "soft"},
           fmt::format("rank {}", planned.size() - 1));
  return fmt::format(
      "<figure><figcaption>Memory by rank{} <span class=\"soft\">{}; bar: peak, line: "
      "planned</span></figcaption>{}</figure>\n",
      escape_xml(", " + run.name), unit.name, std::move(svg).finish());
}

std::string expert_map(const ReportedRun& run) {
  const nlohmann::json line = last_step_line(run.overview.status.folder / "experts.jsonl");
  constexpr std::size_t kMostBoxes = 20000;
  if (!line.is_object() || !line.contains("layers") || !line["layers"].is_array()) return "";
  std::vector<std::pair<std::int64_t, std::vector<double>>> layers;
  std::size_t experts = 0;
  try {
    for (const nlohmann::json& layer : line["layers"]) {
      layers.emplace_back(layer.at("layer").get<std::int64_t>(),
                          layer.at("chosen").get<std::vector<double>>());
      experts = std::max(experts, layers.back().second.size());
    }
  } catch (const nlohmann::json::exception&) {
    return "";
  }
  if (experts == 0 || layers.size() * experts > kMostBoxes) return "";
  constexpr double kWidth = 640.0;
  constexpr double kLeft = 58.0;
  const double row = std::clamp(220.0 / static_cast<double>(layers.size()), 3.0, 22.0);
  const double height = row * static_cast<double>(layers.size()) + 34.0;
  SvgCanvas svg = SvgCanvas::in_page(kWidth, height, "Load of experts");
  const double each = (kWidth - kLeft - 12.0) / static_cast<double>(experts);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& [layer, chosen] = layers[i];
    const double mean = std::max(1e-9, std::accumulate(chosen.begin(), chosen.end(), 0.0) /
                                           static_cast<double>(chosen.size()));
    const double y = 6.0 + row * static_cast<double>(i);
    if (row >= 11.0 || i == 0 || i + 1 == layers.size()) {
      svg.text(kLeft - 6.0, y + row * 0.5 + 4.0,
               {.size = 11.0, .anchor = Anchor::kEnd, .look = "soft"},
               fmt::format("layer {}", layer));
    }
    for (std::size_t expert = 0; expert < chosen.size(); ++expert) {
      const double load = chosen[expert] / mean;  // 1: an even share; the colour is full at 2
      svg.box({kLeft + each * static_cast<double>(expert), y, std::max(0.5, each - 0.6), row - 0.6},
              fmt::format("fill=\"var(--run0)\" fill-opacity=\"{:.2f}\"",
                          std::clamp(load / 2.0, 0.03, 1.0)),
              fmt::format("layer {}, expert {}: {:.2f} times the mean", layer, expert, load));
    }
  }
  svg.text(kLeft, height - 8.0, {.size = 11.0, .look = "soft"}, "expert 0");
  svg.text(kWidth - 12.0, height - 8.0, {.size = 11.0, .anchor = Anchor::kEnd, .look = "soft"},
           fmt::format("expert {}", experts - 1));
  return fmt::format(
      "<figure><figcaption>Load of experts{}, step {} <span class=\"soft\">half tone: an even "
      "share</span></figcaption>{}</figure>\n",
      escape_xml(", " + run.name), line["step"].get<std::int64_t>(), std::move(svg).finish());
}

}  // namespace

std::string ranks_part(const ReportedRuns& runs) {
  std::string html;
  for (const ReportedRun& run : runs) {
    html += rank_bars(run) + expert_map(run);
  }
  return html.empty() ? ""
                      : "<h2>Ranks and experts</h2>\n<div class=\"charts\">\n" + html + "</div>\n";
}
}  // namespace dstrain
