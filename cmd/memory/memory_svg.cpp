#include "cmd/memory/memory_svg.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cmd/memory/byte_ticks.h"
#include "cmd/memory/memory_svg_style.h"
#include "cmd/memory/timeline_columns.h"
#include "cmd/svg_canvas.h"
#include "engine/base/amount_text.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

// All lengths in px.
constexpr double kWidth = 1200.0;
constexpr double kHeight = 700.0;
constexpr double kMargin = 28.0;
constexpr SvgBox kPlot{.x = 92.0, .y = 116.0, .width = 748.0, .height = 468.0};
constexpr double kBottom = kPlot.y + kPlot.height;
constexpr double kRight = kPlot.x + kPlot.width;
constexpr int kNumColumns = 1496;  // two a px
constexpr double kBandHeight = 18.0;
constexpr double kNarrowestBand = 3.0;
constexpr double kLegend = 872.0;       // left edge
constexpr double kLegendPeak = 1090.0;  // right edge of a column of numbers
constexpr double kLegendHeld = kWidth - kMargin;
constexpr double kRow = 25.0;
constexpr double kSwatch = 13.0;
constexpr double kSmall = 12.0;  // fonts
constexpr double kBody = 13.0;

std::string fill_of(MemoryComponent component) {
  return fmt::format("fill=\"{}\"", colour_of(component));
}

std::string class_of(std::string_view name) {
  return fmt::format("class=\"{}\"", name);
}

/// The longest label of a band that fits into it; "" if none does.
std::string label_of(const PhaseBand& band, double width) {
  std::vector<std::string> labels = {describe(band)};
  if (band.kind != PhaseBand::Kind::kUpdate) {
    const bool one = band.first_micro_batch == band.last_micro_batch;
    const std::string numbers =
        one ? fmt::format("{}", band.first_micro_batch)
            : fmt::format("{}–{}", band.first_micro_batch, band.last_micro_batch);
    labels.push_back(fmt::format("{} {}", name_of(band.kind), numbers));
    labels.push_back(numbers);
  }
  for (std::string& label : labels) {
    if (width_of(label, kSmall) + 4.0 <= width) return std::move(label);
  }
  return "";
}

class MemoryPicture {
 public:
  MemoryPicture(const MemoryTimeline& timeline, const MemorySvgText& text)
      : timeline_(timeline),
        text_(text),
        columns_(highest_of_columns(timeline, kNumColumns)),
        bands_(phase_bands(timeline, kNarrowestBand / kPlot.width)),
        held_(timeline.held.total()),
        canvas_(kWidth, kHeight, text.title, memory_style_sheet()) {
    // A device many times larger would leave the areas no height: it is in the legend alone.
    constexpr std::int64_t kHighest = 3;
    constexpr double kRoom = 1.07;  // for a label above the topmost line
    std::int64_t top = std::max<std::int64_t>(held_ + text.overhead_bytes, 1);
    limit_drawn_ = text.limit_bytes && *text.limit_bytes <= kHighest * top;
    if (limit_drawn_) top = std::max(top, *text.limit_bytes);
    top_bytes_ = kRoom * static_cast<double>(top);
    for (const MemoryComponent component : kMemoryComponents) {
      if (timeline.held[component] > 0) shown_.push_back(component);
    }
  }

  std::string draw() && {
    canvas_.box({.width = kWidth, .height = kHeight}, class_of("surface"));
    draw_title();
    draw_axes();
    draw_areas();
    draw_names_in_areas();
    draw_lines();
    draw_peak();
    draw_bands();
    draw_legend();
    return std::move(canvas_).finish();
  }

 private:
  [[nodiscard]] static double x_of(double share) { return kPlot.x + share * kPlot.width; }
  [[nodiscard]] double y_of(double bytes) const {
    return kBottom - bytes / top_bytes_ * kPlot.height;
  }
  [[nodiscard]] double y_of(std::int64_t bytes) const { return y_of(static_cast<double>(bytes)); }
  [[nodiscard]] double peak_x() const {
    const WorkSpan span = span_of(timeline_, timeline_.peak);
    return x_of((span.begin + span.end) / 2);
  }

  void draw_title() {
    constexpr double kTitle = 21.0;
    const double width = kWidth - 2 * kMargin;
    canvas_.text(kMargin, 42.0, {.size = size_to_fit(text_.title, kTitle, width), .bold = true},
                 text_.title);
    canvas_.text(kMargin, 66.0, {.size = size_to_fit(text_.subtitle, kBody, width), .look = "soft"},
                 text_.subtitle);
  }

  void draw_axes() {
    const ByteTicks ticks(top_bytes_);
    for (int i = 0; i < ticks.count(); ++i) {
      const double y = y_of(ticks.bytes(i));
      canvas_.line(kPlot.x, y, kRight, y, class_of(i == 0 ? "rule" : "grid"));
      canvas_.text(kPlot.x - 8.0, y + 4.0, {.size = kSmall, .anchor = Anchor::kEnd, .look = "soft"},
                   ticks.text(i));
    }
    for (const int percent : {0, 25, 50, 75, 100}) {
      canvas_.text(x_of(percent / 100.0), kBottom + 42.0,
                   {.size = kSmall, .anchor = Anchor::kMiddle, .look = "soft"},
                   fmt::format("{} %", percent));
    }
    canvas_.text(x_of(0.5), kBottom + 64.0,
                 {.size = kSmall, .anchor = Anchor::kMiddle, .look = "soft"},
                 "share of the step's work on this rank");
  }

  /// Drawn one over the other, the highest first: each reaches down to zero, and the next covers
  /// all of it but what it adds.
  void draw_areas() {
    canvas_.box(
        {.x = kPlot.x, .y = y_of(held_), .width = kPlot.width, .height = kBottom - y_of(held_)},
        class_of("free"), "held by the arena, not in use at this time");
    for (std::size_t i = shown_.size(); i-- > 0;) {
      const MemoryComponent component = shown_[i];
      const std::string look = fmt::format("data-component=\"{}\" {} class=\"edge\"",
                                           key_of(component), fill_of(component));
      canvas_.path(outline_up_to(i), look,
                   fmt::format("{}: {} at the peak, {} held", name_of(component),
                               size_text(timeline_.highest().in_use[component]),
                               size_text(timeline_.held[component])));
    }
  }

  /// The outline of the shown components up to this one, over all columns.
  [[nodiscard]] std::string outline_up_to(std::size_t last) const {
    std::string path = fmt::format("M{} {}", px(kPlot.x), px(kBottom));
    std::string before;
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      std::int64_t bytes = 0;
      for (std::size_t i = 0; i <= last; ++i) {
        bytes += timeline_.moments[columns_[column]].in_use[shown_[i]];
      }
      std::string y = px(y_of(bytes));
      if (y != before) {
        const double x = x_of(static_cast<double>(column) / kNumColumns);
        path += fmt::format("H{}V{}", px(x), y);
        before = std::move(y);
      }
    }
    return path + fmt::format("H{}V{}Z", px(kRight), px(kBottom));
  }

  /// Labels for the components whose height never changes, where there is room.
  void draw_names_in_areas() {
    std::int64_t below = 0;
    for (const MemoryComponent component :
         {MemoryComponent::kParameters, MemoryComponent::kGradients, MemoryComponent::kOptimizer}) {
      const std::int64_t bytes = timeline_.held[component];
      const double height = y_of(below) - y_of(below + bytes);
      if (height > kBody + 6.0) {
        const double y = (y_of(below) + y_of(below + bytes)) / 2 + kSmall / 3;
        const bool dark = component == MemoryComponent::kParameters;
        canvas_.text(kPlot.x + 10.0, y, {.size = kSmall, .look = dark ? "on-dark" : "on-light"},
                     name_of(component));
      }
      below += bytes;
    }
  }

  void draw_lines() {
    if (text_.overhead_bytes > 0) {
      const double y = y_of(held_ + text_.overhead_bytes);
      canvas_.box({.x = kPlot.x, .y = y, .width = kPlot.width, .height = y_of(held_) - y},
                  class_of("overhead"),
                  fmt::format("beside the arena: {}", size_text(text_.overhead_bytes)));
    }
    canvas_.line(kPlot.x, y_of(held_), kRight, y_of(held_), class_of("held"));
    const std::string held = fmt::format("arena {}", size_text(held_));
    if (!limit_drawn_) {
      draw_line_label(y_of(held_ + text_.overhead_bytes), held);
      return;
    }
    const double y = y_of(*text_.limit_bytes);
    canvas_.line(kPlot.x, y, kRight, y, class_of("limit"));
    const std::string limit = fmt::format("{} {}", text_.limit_name, size_text(*text_.limit_bytes));
    const double held_y = y_of(held_ + text_.overhead_bytes);
    constexpr double kApart = 24.0;
    if (std::abs(y - held_y) < kApart || std::abs(y - y_of(held_)) < kApart) {
      draw_line_label(std::min(y, held_y), fmt::format("{}, {}", held, limit));
    } else {
      draw_line_label(held_y, held);
      draw_line_label(y, limit);
    }
  }

  /// Draws the label above a line, in the half of the plot that the peak's mark is not in.
  void draw_line_label(double y, const std::string& words) {
    const bool left = peak_x() > x_of(0.5);
    const double width = width_of(words, kSmall) + 10.0;
    const double x = left ? kPlot.x + 6.0 : kRight - 6.0 - width;
    canvas_.box({.x = x, .y = y - 20.0, .width = width, .height = 17.0},
                "rx=\"3\" fill-opacity=\".85\" class=\"surface\"");
    canvas_.text(x + width / 2, y - 7.0, {.size = kSmall, .anchor = Anchor::kMiddle}, words);
  }

  void draw_peak() {
    const std::int64_t bytes = timeline_.highest().in_use.total();
    const double x = peak_x();
    const double label_y = kPlot.y - 14.0;
    canvas_.line(x, label_y + 6.0, x, y_of(bytes), class_of("held"));
    canvas_.circle(x, y_of(bytes), 5.0, class_of("dot"));
    const std::string words = fmt::format("peak {}: {}", size_text(bytes), text_.peak);
    const double size = size_to_fit(words, kBody, kPlot.width);
    const double width = width_of(words, size);
    const double middle = std::clamp(x, kPlot.x + width / 2, kRight - width / 2);
    canvas_.text(middle, label_y, {.size = size, .anchor = Anchor::kMiddle, .bold = true}, words);
  }

  void draw_bands() {
    constexpr double kLeast = 1.5;
    const double y = kBottom + 7.0;
    std::vector<PhaseBand::Kind> kinds;
    for (const PhaseBand& band : bands_) {
      const double width = std::max((band.end - band.begin) * kPlot.width, kLeast);
      const double x = std::min(x_of(band.begin), kRight - width);
      const double gap = width > 2 * kNarrowestBand ? 1.0 : 0.0;
      canvas_.box({.x = x, .y = y, .width = width - gap, .height = kBandHeight},
                  class_of(look_of(band.kind)), describe(band));
      const std::string label = label_of(band, width);
      if (!label.empty() && band.kind != PhaseBand::Kind::kUpdate) {
        canvas_.text(x + width / 2, y + 13.0,
                     {.size = kSmall, .anchor = Anchor::kMiddle, .look = "on-light"}, label);
      }
      if (std::find(kinds.begin(), kinds.end(), band.kind) == kinds.end()) {
        kinds.push_back(band.kind);
      }
    }
    draw_band_legend(kinds);
  }

  void draw_band_legend(const std::vector<PhaseBand::Kind>& kinds) {
    double x = kPlot.x;
    const double y = kHeight - 20.0;
    for (const PhaseBand::Kind kind : kinds) {
      canvas_.box({.x = x, .y = y - 10.0, .width = kSwatch, .height = kSwatch - 1.0},
                  class_of(look_of(kind)));
      canvas_.text(x + kSwatch + 6.0, y, {.size = kSmall, .look = "soft"}, name_of(kind));
      x += kSwatch + 6.0 + width_of(name_of(kind), kSmall) + 18.0;
    }
  }

  void draw_legend() {
    double y = kPlot.y - 14.0;
    const SvgText head{.size = kSmall, .anchor = Anchor::kEnd, .look = "soft"};
    canvas_.text(kLegendPeak, y, head, "at the peak");
    canvas_.text(kLegendHeld, y, head, "held");
    const ComponentBytes& peak = timeline_.highest().in_use;
    for (std::size_t i = shown_.size(); i-- > 0;) {  // as they are stacked
      y += kRow;
      const MemoryComponent component = shown_[i];
      canvas_.begin_group(fmt::format("data-legend=\"{}\"", key_of(component)));
      canvas_.box({.x = kLegend, .y = y - 11.0, .width = kSwatch, .height = kSwatch},
                  fill_of(component) + " rx=\"2\"");
      draw_row(y, name_of(component), size_text(peak[component]),
               size_text(timeline_.held[component]));
      canvas_.end_group();
    }
    y += 12.0;
    canvas_.line(kLegend, y, kLegendHeld, y, class_of("rule"));
    y += kRow - 5.0;
    canvas_.begin_group("data-legend=\"all\"");
    draw_row(y, "all together", size_text(peak.total()), size_text(held_), /*bold=*/true);
    canvas_.end_group();
    draw_lines_in_legend(y + 12.0);
  }

  void draw_lines_in_legend(double y) {
    const auto add_line = [&](std::string_view look, std::string_view name, std::int64_t bytes) {
      y += kRow;
      canvas_.line(kLegend - 3.0, y - 4.5, kLegend + kSwatch + 3.0, y - 4.5, class_of(look));
      draw_row(y, name, "", size_text(bytes));
    };
    add_line("held", "arena, all the time", held_);
    if (text_.overhead_bytes > 0) {
      y += kRow;
      canvas_.box({.x = kLegend, .y = y - 11.0, .width = kSwatch, .height = kSwatch},
                  class_of("overhead"));
      draw_row(y, "beside the arena", "", size_text(text_.overhead_bytes));
    }
    if (!text_.limit_bytes) return;
    add_line("limit", limit_drawn_ ? text_.limit_name : text_.limit_name + " (higher up)",
             *text_.limit_bytes);
    const std::int64_t spare = *text_.limit_bytes - held_ - text_.overhead_bytes;
    y += kRow;
    canvas_.text(
        kLegendHeld, y,
        {.size = kBody, .anchor = Anchor::kEnd, .bold = true, .look = spare >= 0 ? "ink" : "bad"},
        spare >= 0 ? fmt::format("fits, {} to spare", size_text(spare))
                   : fmt::format("does not fit: {} too much", size_text(-spare)));
  }

  void draw_row(double y,
                std::string_view name,
                const std::string& peak,
                const std::string& held,
                bool bold = false) {
    const double left = kLegend + kSwatch + 9.0;
    const double room = (peak.empty() ? kLegendHeld : kLegendPeak) - 74.0 - left;
    canvas_.text(left, y, {.size = size_to_fit(name, kBody, room), .bold = bold}, name);
    const SvgText number{.size = kBody, .anchor = Anchor::kEnd, .bold = bold};
    if (!peak.empty()) canvas_.text(kLegendPeak, y, number, peak);
    canvas_.text(kLegendHeld, y, number, held);
  }

  const MemoryTimeline& timeline_;
  const MemorySvgText& text_;
  const std::vector<std::size_t> columns_;  // moments
  const std::vector<PhaseBand> bands_;
  const std::int64_t held_;
  SvgCanvas canvas_;
  std::vector<MemoryComponent> shown_;  // from the bottom up
  bool limit_drawn_ = false;
  double top_bytes_ = 1.0;
};

}  // namespace

std::string memory_svg(const MemoryTimeline& timeline, const MemorySvgText& text) {
  return MemoryPicture(timeline, text).draw();
}

}  // namespace dstrain
