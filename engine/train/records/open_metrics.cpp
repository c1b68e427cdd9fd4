#include "engine/train/records/open_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "engine/train/records/curves.h"

namespace dstrain {
namespace {

constexpr std::array kPhases = {
    std::pair{RunPhase::kStarting, "starting"}, std::pair{RunPhase::kTraining, "training"},
    std::pair{RunPhase::kEvaluating, "evaluating"}, std::pair{RunPhase::kSaving, "saving"},
    std::pair{RunPhase::kEnding, "ending"}};

std::string label(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? "\\n" : std::string(1, c);
  }
  return escaped;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

class Page {
 public:
  Page(MetricsText text, const std::string& run) : text_(text), run_(label(run)) {}

  void gauge(const std::string& name, std::string_view help, double value) {
    head(name, "gauge", help);
    page_ += fmt::format("{}{{run=\"{}\"}} {}\n", name, run_, number(value));
  }
  void counter(const std::string& name, std::string_view help, std::int64_t value) {
    // OpenMetrics names the family, the older format the series.
    head(text_ == MetricsText::kOpenMetrics ? name : name + "_total", "counter", help);
    page_ += fmt::format("{}_total{{run=\"{}\"}} {}\n", name, run_, value);
  }
  void phases(RunPhase now) {
    head("dstrain_phase", "gauge", "1 for what the run is doing, 0 for the rest");
    for (const auto& [phase, name] : kPhases) {
      page_ += fmt::format("dstrain_phase{{run=\"{}\",phase=\"{}\"}} {}\n", run_, name,
                           phase == now ? 1 : 0);
    }
  }
  std::string end() && {
    if (text_ == MetricsText::kOpenMetrics) page_ += "# EOF\n";
    return std::move(page_);
  }

 private:
  void head(const std::string& name, const char* type, std::string_view help) {
    page_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }

  MetricsText text_;
  std::string run_;
  std::string page_;
};

std::string metric_name(std::string_view curve) {
  std::string name = "dstrain_" + std::string(curve);
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

}  // namespace

MetricsText accepted_text(const std::string& accept) {
  return accept.find("application/openmetrics-text") != std::string::npos
             ? MetricsText::kOpenMetrics
             : MetricsText::kPrometheus;
}

const char* content_type(MetricsText text) {
  return text == MetricsText::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::string to_text(const MetricsSnapshot& snapshot, MetricsText text) {
  Page page(text, snapshot.run);
  page.phases(snapshot.phase);
  page.counter("dstrain_steps", "Optimizer steps done, with those before a resume", snapshot.step);
  page.counter("dstrain_tokens", "Tokens seen since step 0", snapshot.tokens);
  if (snapshot.values.empty()) return std::move(page).end();
  const std::chrono::duration<double> end = snapshot.step_end.time_since_epoch();
  page.gauge("dstrain_last_step_timestamp_seconds", "When the last step ended", end.count());
  for (std::size_t i = 0; i < snapshot.values.size(); ++i) {
    const Curve& curve = curves()[i];
    if (curve.name == "train/tokens" || !snapshot.values[i]) continue;  // a counter says it
    page.gauge(metric_name(curve.name), curve.meaning, *snapshot.values[i]);
  }
  return std::move(page).end();
}

}  // namespace dstrain
