#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "cmd/report/line_chart.h"
#include "cmd/report/report_parts.h"
#include "cmd/svg_canvas.h"

namespace dstrain {
namespace {

struct Share {
  const char* name;
  const char* look;  ///< a colour of the style sheet
  double seconds;
};

std::vector<Share> shares_of(const MetricsColumns& metrics) {
  const auto total = [&](const char* path) { return sum_of(metrics.column(path)); };
  std::vector<Share> shares = {{"forward", "forward", total("forward_seconds")},
                               {"backward", "backward", total("backward_seconds")},
                               {"update", "update", total("optimizer_seconds")},
                               {"data", "data", total("data_seconds")},
                               {"evaluation", "eval", total("evaluation_seconds")},
                               {"checkpoints", "save", total("checkpoint_seconds")}};
  const double named =
      shares[0].seconds + shares[1].seconds + shares[2].seconds + shares[3].seconds;
  shares.push_back({"the rest of the steps", "rest", std::max(0.0, total("step_seconds") - named)});
  return shares;
}

}  // namespace

std::string time_part(const ReportedRuns& runs) {
  std::string html;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const MetricsColumns& metrics = runs[i].metrics;
    const std::vector<Share> shares = shares_of(metrics);
    const double total =
        std::accumulate(shares.begin(), shares.end(), 0.0,
                        [](double sum, const Share& s) { return sum + s.seconds; });
    if (total <= 0.0) continue;
    std::string bar;
    std::string words;
    for (const Share& share : shares) {
      const double percent = 100.0 * share.seconds / total;
      if (percent < 0.05) continue;
      bar += fmt::format(
          "<div style=\"width:{:.2f}%;background:var(--{})\" title=\"{} {:.1f} %\"></div>", percent,
          share.look, share.name, percent);
      words += fmt::format(
          "<span style=\"white-space:nowrap\"><i style=\"--c:var(--{})\"></i>{} "
          "{:.1f} %</span> ",
          share.look, share.name, percent);
    }
    const double waited = 100.0 * sum_of(metrics.column("communication_seconds")) / total;
    html += fmt::format(
        "<div class=\"card\"><b>{}{}</b> <span class=\"soft\">{} s in steps, evaluations and "
        "saves; "
        "{:.1f} % of it waiting for other ranks, within the phases</span>"
        "<div class=\"split\">{}</div><div class=\"key\">{}</div></div>\n",
        runs.size() > 1 ? swatch(i) : "", escape_xml(runs[i].name), short_number(total), waited,
        bar, words);
  }
  return html.empty() ? "" : "<h2>Where the time went</h2>\n" + html;
}

double sum_of(const std::vector<float>& column) {
  return std::accumulate(column.begin(), column.end(), 0.0, [](double sum, float value) {
    return std::isfinite(value) ? sum + value : sum;
  });
}
}  // namespace dstrain
