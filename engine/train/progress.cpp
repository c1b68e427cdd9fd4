#include "engine/train/progress.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace dstrain {
namespace {

constexpr std::int64_t kBarWidth = 24;
constexpr std::chrono::milliseconds kRedrawEvery{100};

std::string bar(std::int64_t step, std::int64_t total) {
  const std::int64_t filled = kBarWidth * step / std::max<std::int64_t>(1, total);
  std::string text;
  for (std::int64_t i = 0; i < kBarWidth; ++i) {
    text += i < filled ? "█" : "░";
  }
  return text;
}

std::string clock(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
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

void ProgressLine::after_step(const StepMetrics& metrics) {
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
    line += fmt::format("  lr {:.2e}  grad norm {:.3f}  {:.0f} tokens/s  {} left",
                        metrics.learning_rate, metrics.grad_norm, metrics.tokens_per_second,
                        clock(seconds_left(metrics.step)));
    spdlog::info("{}", line);
  }
  const auto now = std::chrono::steady_clock::now();
  if (kind_ == Progress::kTerminal && now - last_shown_ >= kRedrawEvery) {
    last_shown_ = now;
    const std::string line =
        fmt::format("{} {}/{}  loss {:.4f}  {:.0f} tokens/s  {} left\r",
                    bar(metrics.step, total_steps_), metrics.step, total_steps_, metrics.loss,
                    metrics.tokens_per_second, clock(seconds_left(metrics.step)));
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fflush(stderr);
  }
}

std::string memory_text(std::span<const RankMemory> by_rank) {
  const auto fullest = std::max_element(
      by_rank.begin(), by_rank.end(),
      [](const RankMemory& a, const RankMemory& b) { return a.peak_bytes < b.peak_bytes; });
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
  std::string text = fmt::format(
      "planned {:.2f} GiB + {:.2f} GiB overhead, measured peak {:.2f} GiB",
      gib(fullest->planned_bytes), gib(fullest->overhead_bytes), gib(fullest->peak_bytes));
  if (by_rank.size() > 1) {
    text += fmt::format(" on rank {}, which holds most", fullest - by_rank.begin());
  }
  return text;
}

}  // namespace dstrain
