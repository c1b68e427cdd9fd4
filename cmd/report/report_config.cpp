#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "cmd/report/report_parts.h"
#include "cmd/svg_canvas.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

void add_values(const Json& block,
                const std::string& path,
                std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [key, value] : block.items()) {
    if (key.starts_with('_')) continue;
    const std::string name = path.empty() ? key : path + "." + key;
    if (value.is_object()) {
      add_values(value, name, values);
    } else {
      values.emplace_back(name, value.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
  }
}

}  // namespace

std::string config_part(const ReportedRuns& runs) {
  std::vector<std::string> order;
  std::set<std::string> known;
  std::vector<std::map<std::string, std::string>> values(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::pair<std::string, std::string>> own;
    if (runs[i].overview.config.is_object()) add_values(runs[i].overview.config, "", own);
    for (const auto& [path, value] : own) {
      if (known.insert(path).second) order.push_back(path);
      values[i][path] = value;
    }
  }
  if (order.empty()) return "";
  std::string differing;
  std::string all;
  for (const std::string& path : order) {
    std::string cells;
    bool differs = false;
    const std::string first = values[0].count(path) > 0 ? values[0][path] : "";
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::string value = values[i].count(path) > 0 ? values[i][path] : "";
      differs = differs || value != first;
      const bool has_value = values[i].count(path) > 0;
      const auto& starts = runs[i].overview.starts;
      std::string origin = "default";
      if (starts.empty() || !has_value) {
        origin.clear();
      } else if (const auto found = starts.back().origins.find(path);
                 found != starts.back().origins.end()) {
        origin = found->second;
      }
      cells += fmt::format("<td><code>{}</code> <span class=\"soft\">{}</span></td>",
                           escape_xml(value), escape_xml(origin));
    }
    const std::string row =
        fmt::format("<tr{}><td><code>{}</code></td>{}</tr>\n", differs ? " class=\"differs\"" : "",
                    escape_xml(path), cells);
    all += row;
    if (differs) differing += row;
  }
  std::string head = "<tr><th>Key</th>";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    head += fmt::format("<th>{}{}</th>", swatch(i), escape_xml(runs[i].name));
  }
  head += "</tr>\n";
  std::string html = "<h2>Config</h2>\n";
  if (runs.size() > 1) {
    html += differing.empty()
                ? "<p>The configs do not differ.</p>\n"
                : "<div class=\"card scroll\"><table>\n" + head + differing + "</table></div>\n";
  }
  return html +
         "<details><summary>All values, and where they come from</summary><div class=\"card "
         "scroll\"><table>\n" +
         head + all + "</table></div></details>\n";
}
}  // namespace dstrain
