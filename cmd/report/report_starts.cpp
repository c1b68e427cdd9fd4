#include <fmt/format.h>

#include "cmd/report/report_parts.h"
#include "cmd/report/report_style.h"
#include "cmd/svg_canvas.h"
#include "engine/base/amount_text.h"

namespace dstrain {

std::string starts_part(const ReportedRuns& runs) {
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunOverview& run = runs[i].overview;
    for (std::size_t k = 0; k < run.starts.size(); ++k) {
      const RunStart& start = run.starts[k];
      const bool is_last = k + 1 == run.starts.size();
      std::string end = start.end;
      if (end.empty()) {
        const std::string word = is_last ? run_word(run) : "";
        end = word == "running"   ? "is running"
              : word == "unknown" ? "unknown: its host was not asked"
                                  : "ended without a word: killed, or its machine failed";
      }
      rows += fmt::format(
          "<tr><td>{}{}</td><td class=\"time\">{}</td><td "
          "class=\"number\">{}</td><td>{}</td><td>{}</td>"
          "<td>{}</td><td>{}</td></tr>\n",
          swatch(i), escape_xml(runs[i].name), escape_xml(start.time), start.step,
          escape_xml(layout_text(start)), escape_xml(start.host), escape_xml(start.end_time),
          escape_xml(end));
    }
  }
  if (rows.empty()) return "";
  return "<h2>Starts and ends</h2>\n<div class=\"card "
         "scroll\"><table>\n<tr><th>Run</th><th>Started</th>"
         "<th>After step</th><th>Layout</th><th>Rank 0 on</th><th>Ended</th><th>How</th></tr>\n" +
         rows + "</table></div>\n";
}

std::string layout_text(const RunStart& start) {
  std::string text = counted(start.ranks, "rank");
  const auto degree = [&](const char* name) {
    return static_cast<int>(number_at(start.layout, name).value_or(1));
  };
  for (const auto& [name, word] : {std::pair{"pipeline", "pipeline"}, std::pair{"data", "data"},
                                   std::pair{"context", "context"}, std::pair{"tensor", "tensor"},
                                   std::pair{"experts", "expert"}}) {
    if (degree(name) > 1) text += fmt::format(", {} {}", degree(name), word);
  }
  return text + fmt::format("; ZeRO stage {}",
                            static_cast<int>(number_at(start.layout, "zero_stage").value_or(0)));
}

}  // namespace dstrain
