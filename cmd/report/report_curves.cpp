#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cmd/report/line_chart.h"
#include "cmd/report/report_parts.h"
#include "cmd/report/report_style.h"
#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

struct Drawn {
  std::string path;  ///< in metrics.jsonl
  std::string name;  ///< beside the run's, where a chart has several of a run
  bool dashed = false;
};
struct Figure {
  std::string title;
  std::string unit;
  std::vector<Drawn> curves;
  bool from_zero = false;
  bool logarithmic = false;
  bool noisy = false;  ///< its first curve
  bool bytes = false;  ///< in the unit that fits
};

constexpr const char* kLossUnit = "nats per token; dashed: validation";

/// Whether a run's loss is that of the next token: that of preferences or rewards is not.
bool is_of_tokens(const MetricsColumns& metrics) {
  return values_of(metrics, "reward").empty() && values_of(metrics, "chosen_reward").empty();
}

const std::vector<Figure>& figures() {
  static const std::vector<Figure> all = {
      {.title = "Loss",
       .unit = kLossUnit,
       .curves = {{"loss", "training"}, {"validation_loss", "validation", true}},
       .noisy = true},
      {.title = "Preferences",
       .unit = "share of pairs in the right order; dashed: validation",
       .curves = {{"preference_accuracy", "training"},
                  {"validation_preference_accuracy", "validation", true}},
       .noisy = true},
      {.title = "Rewards",
       .unit = "dashed: of rejected answers",
       .curves = {{"chosen_reward", "chosen"}, {"rejected_reward", "rejected", true}},
       .noisy = true},
      {.title = "Reward",
       .unit = "mean of the completions",
       .curves = {{"reward", ""}},
       .noisy = true},
      {.title = "Divergence from the reference",
       .unit = "nats per token",
       .curves = {{"divergence", ""}},
       .noisy = true},
      {.title = "Length of completions",
       .unit = "tokens, mean",
       .curves = {{"completion_tokens", ""}},
       .from_zero = true,
       .noisy = true},
      {.title = "Clipped",
       .unit = "share of tokens",
       .curves = {{"clipped", ""}},
       .from_zero = true},
      {.title = "Loss of values", .curves = {{"value_loss", ""}}, .noisy = true},
      {.title = "Learning rate", .curves = {{"lr", ""}}, .from_zero = true},
      {.title = "Gradient norm", .curves = {{"grad_norm", ""}}, .logarithmic = true, .noisy = true},
      {.title = "Speed",
       .unit = "tokens/s",
       .curves = {{"tokens_per_second", ""}},
       .from_zero = true},
      {.title = "Time of a step",
       .unit = "seconds; dashed: waiting for other ranks",
       .curves = {{"step_seconds", "step"}, {"communication_seconds", "waiting", true}},
       .from_zero = true},
      {.title = "Memory of the rank that holds most",
       .unit = "dashed: planned",
       .curves = {{"memory_bytes.measured", "measured"},
                  {"memory_bytes.expected", "planned", true}},
       .from_zero = true,
       .bytes = true},
      {.title = "Model FLOP/s", .curves = {{"model_flops_per_second", ""}}, .from_zero = true},
      {.title = "Loss scale", .curves = {{"loss_scale", ""}}, .logarithmic = true},
      {.title = "Busiest expert",
       .unit = "over the mean of its layer",
       .curves = {{"busiest_expert", ""}}},
      {.title = "Balance loss", .curves = {{"balance_loss", ""}}},
      {.title = "Lowest clock of a GPU",
       .unit = "MHz",
       .curves = {{"devices.lowest_compute_mhz", ""}}},
      {.title = "Power of all GPUs",
       .unit = "W",
       .curves = {{"devices.total_watts", ""}},
       .from_zero = true},
  };
  return all;
}

bool is_constant(const std::vector<float>& column) {
  return std::all_of(column.begin(), column.end(),
                     [&](float value) { return value == column.front(); });
}

/// Puts a chart of bytes into the unit that fits the largest of them.
void scale_bytes(LineChart& chart) {
  double most = 0.0;
  for (const ChartSeries& series : chart.series) {
    for (const double y : series.y) {
      if (std::isfinite(y)) most = std::max(most, y);
    }
  }
  const SizeUnit unit = unit_for(std::llround(most));
  for (ChartSeries& series : chart.series) {
    for (double& y : series.y)
      y /= static_cast<double>(unit.bytes);
  }
  chart.unit = fmt::format("{}; {}", unit.name, chart.unit);
}

}  // namespace

std::string curves_part(const ReportedRuns& runs) {
  std::string html;
  for (const Figure& figure : figures()) {
    LineChart chart{.title = figure.title,
                    .unit = figure.unit,
                    .from_zero = figure.from_zero,
                    .logarithmic = figure.logarithmic,
                    .series = {}};
    const bool is_loss = figure.unit == kLossUnit;
    if (is_loss && !std::all_of(runs.begin(), runs.end(),
                                [](const auto& run) { return is_of_tokens(run.metrics); })) {
      chart.unit = "dashed: validation";
    }
    bool moves = figure.title != "Loss scale";  // which is 1 throughout, without fp16
    for (std::size_t run = 0; run < runs.size(); ++run) {
      const MetricsColumns& metrics = runs[run].metrics;
      const std::vector<double> steps(metrics.steps().begin(), metrics.steps().end());
      for (const Drawn& drawn : figure.curves) {
        std::vector<double> values = values_of(metrics, drawn.path);
        if (values.empty()) continue;
        moves = moves || !is_constant(metrics.column(drawn.path));
        std::string name = runs.size() == 1 && !drawn.name.empty() ? drawn.name : runs[run].name;
        if (runs.size() > 1 && !drawn.name.empty()) name += ", " + drawn.name;
        chart.series.push_back({.run = static_cast<int>(run % kRunColours),
                                .name = name,
                                .dashed = drawn.dashed,
                                .noisy = figure.noisy && !drawn.dashed,
                                .x = steps,
                                .y = std::move(values)});
      }
    }
    if (figure.bytes) scale_bytes(chart);
    if (moves && chart.has_values()) html += chart.html();
  }
  return html.empty() ? "<p>No step has ended yet.</p>\n"
                      : "<div class=\"charts\">\n" + html + "</div>\n";
}

std::vector<double> values_of(const MetricsColumns& metrics, const std::string& path) {
  if (path == "memory_bytes.expected") {
    std::vector<double> sum = values_of(metrics, "memory_bytes.planned");
    const std::vector<double> beside = values_of(metrics, "memory_bytes.overhead");
    for (std::size_t i = 0; i < std::min(sum.size(), beside.size()); ++i)
      sum[i] += beside[i];
    return sum;
  }
  const std::vector<float>& column = metrics.column(path);
  return {column.begin(), column.end()};
}
}  // namespace dstrain
