#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "cmd/report/line_chart.h"
#include "cmd/report/report_parts.h"
#include "cmd/svg_canvas.h"
#include "engine/base/amount_text.h"
#include "engine/config/arch/model_counts.h"
#include "engine/config/config_json.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> median_of(std::vector<float> column) {
  std::erase_if(column, [](float value) { return !std::isfinite(value); });
  if (column.empty()) return std::nullopt;
  const auto middle = column.begin() + static_cast<std::ptrdiff_t>(column.size() / 2);
  std::nth_element(column.begin(), middle, column.end());
  return *middle;
}

std::optional<double> last_of(const std::vector<float>& column) {
  const auto found = std::find_if(column.rbegin(), column.rend(),
                                  [](float value) { return std::isfinite(value); });
  return found == column.rend() ? std::nullopt : std::optional<double>(*found);
}

std::optional<double> least_of(const std::vector<float>& column) {
  std::optional<double> least;
  for (const float value : column) {
    if (std::isfinite(value) && (!least || value < *least)) least = value;
  }
  return least;
}

/// The parameters of the model that a resolved config describes; none where it cannot be read.
std::optional<std::int64_t> parameters_of(const ReportedRun& run) {
  if (run.overview.config.is_null()) return std::nullopt;
  try {
    const auto path = run.overview.status.folder / "config.resolved.json";
    return num_parameters(load_config(path, {.allow_unknown_keys = true}).config.model);
  } catch (const std::exception&) {  // of another version
    return std::nullopt;
  }
}

std::string config_value(const ReportedRun& run, const std::string& path) {
  const Json* value = &run.overview.config;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    if (!value->is_object() || !value->contains(path.substr(begin, dot - begin))) return "";
    value = &(*value)[path.substr(begin, dot - begin)];
    begin = dot + 1;
  }
  return value->is_string() ? value->get<std::string>() : value->dump();
}

std::string precision_of(const ReportedRun& run) {
  std::string precision = "fp32";
  for (const char* name : {"bf16", "fp16"}) {
    if (config_value(run, std::string(name) + ".enabled") == "true") precision = name;
  }
  return config_value(run, "fp8.enabled") == "true" ? precision + " with fp8" : precision;
}

/// From the first step to the last, with what lay between.
std::string duration_of(const MetricsColumns& metrics) {
  const auto& times = metrics.times();
  if (times.size() < 2 || !(times.back() >= times.front())) return "";
  return clock_text(times.back() - times.front());
}

std::string decimals(const std::optional<double>& value, int count) {
  return value ? fmt::format("{:.{}f}", *value, count) : "";
}

std::string whole(const std::optional<double>& value) {
  return value ? grouped(std::llround(*value)) : "";
}

/// How much faster a run is than the one of the same model on fewest ranks, over how many more
/// ranks it has.
std::string scaling_text(const ReportedRuns& runs, std::size_t index) {
  const auto ranks = [&](std::size_t i) {
    return runs[i].overview.starts.empty() ? 0 : runs[i].overview.starts.back().ranks;
  };
  const auto speed = [&](std::size_t i) {
    return median_of(runs[i].metrics.column("tokens_per_second")).value_or(0.0);
  };
  const auto is_alike = [&](std::size_t i) {
    return runs[i].overview.config.is_object() &&
           config_value(runs[i], "model") == config_value(runs[index], "model") &&
           config_value(runs[i], "data.sequence_length") ==
               config_value(runs[index], "data.sequence_length");
  };
  std::size_t base = index;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (is_alike(i) && ranks(i) > 0 && ranks(i) < ranks(base) && speed(i) > 0.0) base = i;
  }
  if (base == index || ranks(index) == 0) return "";
  const double times = speed(index) / speed(base);
  const double more = static_cast<double>(ranks(index)) / ranks(base);
  return fmt::format("{:.2f} × {} on {}: {:.0f} % of {:.3g} ×", times, runs[base].name,
                     counted(ranks(base), "rank"), 100.0 * times / more, more);
}

}  // namespace

std::string overview_part(const ReportedRuns& runs) {
  using Text = std::function<std::string(const ReportedRun&)>;
  const auto row = [&](const std::string& name, const Text& text) {
    std::string cells;
    bool any = false;
    for (const ReportedRun& run : runs) {
      const std::string words = text(run);
      any = any || !words.empty();
      cells += fmt::format("<td>{}</td>", escape_xml(words));
    }
    return any ? fmt::format("<tr><th>{}</th>{}</tr>\n", name, cells) : std::string();
  };
  std::string html = "<div class=\"card scroll\"><table>\n<tr><th></th>";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format("<th>{}{}</th>", swatch(i), escape_xml(runs[i].name));
  }
  html += "</tr>\n";
  html += row("State", [](const ReportedRun& run) {
    const std::string last = last_word(run.overview);
    const std::string word = run_word(run.overview);
    return last.empty() || last.starts_with(word) ? (last.empty() ? word : last)
                                                  : word + ": " + last;
  });
  html += row("Steps", [](const ReportedRun& run) {
    const std::string step = grouped(run.overview.step());
    return run.overview.total_steps ? step + " of " + grouped(*run.overview.total_steps) : step;
  });
  html += row("Tokens",
              [](const ReportedRun& run) { return whole(last_of(run.metrics.column("tokens"))); });
  html += row("Loss", [](const ReportedRun& run) {
    return decimals(last_of(run.metrics.column("loss")), 4);
  });
  html += row("Validation loss", [](const ReportedRun& run) {
    const auto last = last_of(run.metrics.column("validation_loss"));
    const auto least = least_of(run.metrics.column("validation_loss"));
    return decimals(last, 4) + (last && *least < *last ? ", least " + decimals(least, 4) : "");
  });
  html += row("Tokens/s, median", [](const ReportedRun& run) {
    return whole(median_of(run.metrics.column("tokens_per_second")));
  });
  std::string scaling;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    scaling += fmt::format("<td>{}</td>", escape_xml(scaling_text(runs, i)));
  }
  if (scaling.find("×") != std::string::npos) {
    html += fmt::format("<tr><th>Scaling</th>{}</tr>\n", scaling);
  }
  html += row("Model FLOP/s, median", [](const ReportedRun& run) {
    const auto flops = median_of(run.metrics.column("model_flops_per_second"));
    const auto share = median_of(run.metrics.column("model_flops_utilization"));
    return (flops ? short_number(*flops) : "") +
           (share ? fmt::format(", {:.1f} % of the data sheets", 100.0 * *share) : "");
  });
  html += row("Time", [](const ReportedRun& run) { return duration_of(run.metrics); });
  html += row("Model", [](const ReportedRun& run) {
    const auto parameters = parameters_of(run);
    return config_value(run, "model.model_type") +
           (parameters ? fmt::format(", {} parameters", grouped(*parameters)) : "");
  });
  html += row("Precision", precision_of);
  html += row("Batch", [](const ReportedRun& run) {
    const std::string batch = config_value(run, "train_batch_size");
    return batch.empty() ? ""
                         : batch + " sequences of " + config_value(run, "data.sequence_length");
  });
  html += row("Layout", [](const ReportedRun& run) {
    return run.overview.starts.empty() ? "" : layout_text(run.overview.starts.back());
  });
  html += row("Device", [](const ReportedRun& run) {
    return run.overview.starts.empty() ? "" : run.overview.starts.back().device;
  });
  html += row("Memory of the fullest rank", [](const ReportedRun& run) {
    const std::vector<double> planned = values_of(run.metrics, "memory_bytes.expected");
    const auto peak = last_of(run.metrics.column("memory_bytes.peak"));
    return planned.empty() || !peak
               ? ""
               : fmt::format("planned {}, peak {}", size_text(std::llround(planned.back())),
                             size_text(std::llround(*peak)));
  });
  html += row("Folder", [](const ReportedRun& run) { return run.overview.status.folder.string(); });
  return html + "</table></div>\n";
}
}  // namespace dstrain
