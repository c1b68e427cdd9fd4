#include "cmd/report/report_page.h"

#include <fmt/format.h>

#include "cmd/report/report_parts.h"
#include "cmd/report/report_style.h"
#include "cmd/svg_canvas.h"
#include "engine/base/amount_text.h"
#include "engine/checkpoint/owner/owner_record.h"

namespace dstrain {
namespace {

std::string notes(const ReportedRuns& runs) {
  std::string html;
  for (const ReportedRun& run : runs) {
    if (const std::int64_t bad = run.metrics.bad_lines(); bad > 0) {
      html +=
          fmt::format("<p>{} of {}/metrics.jsonl {} not read: not whole, or out of order.</p>\n",
                      counted(bad, "line"), escape_xml(run.overview.status.folder.string()),
                      bad == 1 ? "was" : "were");
    }
    if (run.overview.config.is_null()) {
      html += fmt::format("<p>{} has no config.resolved.json that can be read.</p>\n",
                          escape_xml(run.overview.status.folder.string()));
    }
  }
  return html;
}

std::string key_of(const ReportedRuns& runs) {
  if (runs.size() < 2) return "";
  std::string html = "<div class=\"key\">";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format(
        "<label class=\"{}\"><input type=\"checkbox\" value=\"{}\" checked> <i></i>{}</label>",
        run_class(i), i % kRunColours, escape_xml(runs[i].name));
  }
  return html + "</div>\n";
}

/// Rules by which the key's boxes hide a run's curves.
std::string hiding_rules() {
  std::string rules;
  for (int run = 0; run < kRunColours; ++run) {
    rules += fmt::format(".without{0} svg .run{0}{{display:none}}\n", run);
  }
  return rules;
}

}  // namespace

std::string run_class(std::size_t index) {
  return fmt::format("run{}", index % kRunColours);
}

std::string swatch(std::size_t index) {
  return fmt::format("<i class=\"{}\"></i>", run_class(index));
}

std::string report_page(const ReportedRuns& runs) {
  std::string title;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    title += (i == 0 ? "" : ", ") + runs[i].name;
  }
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
             "<title>{0}</title>\n<style>\n{1}{2}</style>\n</head>\n<body>\n"
             "<svg width=\"0\" height=\"0\" style=\"position:absolute\"><clipPath id=\"plot\">"
             "<rect x=\"58\" y=\"10\" width=\"570\" height=\"208\"/></clipPath></svg>\n<main>\n"
             "<h1>{0}</h1>\n<p class=\"soft\">Made by dstrain report on {3}</p>\n",
             escape_xml(title), report_style(), hiding_rules(), utc_now()) +
         notes(runs) + overview_part(runs) + "<h2>Curves</h2>\n" + key_of(runs) +
         curves_part(runs) + time_part(runs) + timeline_part(runs) + ranks_part(runs) +
         starts_part(runs) + config_part(runs) +
         fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", report_script());
}

}  // namespace dstrain
