#include "engine/train/observers/progress_line.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

constexpr std::int64_t kBarWidth = 24;
constexpr const char* kEraseToEnd = "\x1b[K";
constexpr std::chrono::milliseconds kRedrawEvery{100};

std::string bar(std::int64_t step, std::int64_t total) {
  const std::int64_t filled = kBarWidth * step / std::max<std::int64_t>(1, total);
  std::string text;
  for (std::int64_t i = 0; i < kBarWidth; ++i) {
    text += i < filled ? "█" : "░";
  }
  return text;
}

/// Tells the losses of experts, and how often the busiest expert of all layers is chosen over the
/// mean of its layer. Empty where no layer has experts.
std::string routing_text(const std::vector<LayerRouting>& routing) {
  if (routing.empty()) return "";
  std::string text;
  if (const auto balance = mean_balance_loss(routing)) {
    text += fmt::format("  balance loss {:.4f}", *balance);
  }
  if (const auto z_loss = mean_z_loss(routing)) {
    text += fmt::format("  z loss {:.4f}", *z_loss);
  }
  text += fmt::format("  busiest expert {:.2f}x", busiest_of(routing));
  if (const auto dropped = dropped_choices(routing)) {
    text += fmt::format("  dropped {:.1f} %", 100.0 * dropped->share);
  }
  return text;
}

std::string preference_text(const std::optional<PreferenceMetrics>& metrics) {
  if (!metrics) return "";
  std::string text;
  if (metrics->accuracy) text += fmt::format("  accuracy {:.2f}", *metrics->accuracy);
  if (metrics->chosen_reward && metrics->rejected_reward) {
    text += fmt::format("  margin {:.3f}", *metrics->chosen_reward - *metrics->rejected_reward);
  }
  if (metrics->divergence) text += fmt::format("  divergence {:.3f}", *metrics->divergence);
  return text;
}

/// The width of the terminal on stderr; none where it is not a terminal, or the width is unknown.
std::optional<std::size_t> columns() {
  winsize size{};
  const bool known =
      isatty(STDERR_FILENO) == 1 && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::optional<std::size_t>(size.ws_col) : std::nullopt;
}

}  // namespace

ProgressLine::ProgressLine(Progress kind,
                           std::int64_t first_step,
                           std::int64_t total_steps,
                           std::int64_t steps_per_line)
    : kind_(kind),
      first_step_(first_step),
      total_steps_(total_steps),
      steps_per_line_(std::max<std::int64_t>(1, steps_per_line)) {}

double ProgressLine::seconds_left(std::int64_t step) const {
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const auto done = static_cast<double>(std::max<std::int64_t>(1, step - first_step_));
  return elapsed / done * static_cast<double>(total_steps_ - step);
}

void ProgressLine::on_step(const StepMetrics& metrics, bool /*is_last*/) {
  if (kind_ == Progress::kNone) {
    return;
  }
  const bool evaluated = metrics.validation_loss.has_value();
  const bool finished = metrics.step == total_steps_;
  if (evaluated || finished || metrics.step == first_step_ + 1 ||
      metrics.step % steps_per_line_ == 0) {
    std::string line =
        fmt::format("step {}/{}  loss {:.4f}", metrics.step, total_steps_, metrics.loss);
    if (evaluated) {
      line += fmt::format("  validation {:.4f}", *metrics.validation_loss);
    }
    line += preference_text(metrics.preferences);
    line += fmt::format("  lr {:.2e}  grad norm {:.3f}  {:.0f} tokens/s  {} left",
                        metrics.learning_rate, metrics.grad_norm, metrics.tokens_per_second,
                        clock_text(seconds_left(metrics.step)));
    spdlog::info("{}", line + routing_text(metrics.routing));
  }
  const auto now = std::chrono::steady_clock::now();
  if (kind_ == Progress::kTerminal && now - last_shown_ >= kRedrawEvery) {
    last_shown_ = now;
    show(metrics);
  }
}

/// The line must not wrap: a wrapped one cannot be drawn over. Where the output is a pipe, the
/// launcher knows the width and leaves out what does not fit.
void ProgressLine::show(const StepMetrics& metrics) {
  const std::string facts =
      fmt::format("{}/{}  loss {:.4f}  {:.0f} tokens/s  {} left", metrics.step, total_steps_,
                  metrics.loss, metrics.tokens_per_second, clock_text(seconds_left(metrics.step)));
  const std::optional<std::size_t> width = columns();
  std::string line = facts;
  if (!width || facts.size() + 2 + kBarWidth < *width) {
    line = bar(metrics.step, total_steps_) + "  " + facts;
  } else if (facts.size() >= *width) {
    line = facts.substr(0, *width - 1);
  }
  line += width ? std::string(kEraseToEnd) + "\r" : "\r";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  is_drawn_ = width.has_value();
}

ProgressLine::~ProgressLine() {
  if (is_drawn_) {
    std::fputs(kEraseToEnd, stderr);
  }
}

}  // namespace dstrain
