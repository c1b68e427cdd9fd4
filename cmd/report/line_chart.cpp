#include "cmd/report/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cmd/svg_canvas.h"

namespace dstrain {
namespace {

constexpr double kWidth = 640.0;
constexpr double kHeight = 250.0;
constexpr SvgBox kPlot{.x = 58.0, .y = 10.0, .width = 570.0, .height = 208.0};
constexpr std::size_t kPieces = 570;   // of a curve: one a px
constexpr std::size_t kNoisy = 100;    // points, below which a curve is as it is
constexpr std::size_t kDots = 40;      // points, up to which each has a dot
constexpr double kEarlyShare = 0.05;   // of a run, whose values may leave the picture
constexpr double kMostOverRest = 2.0;  // if they are that far above the range of the rest

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  [[nodiscard]] bool is_empty() const { return low > high; }
};

/// Gives a range of one value some width.
Extent widened(Extent extent) {
  if (extent.high > extent.low) return extent;
  const double around = extent.low == 0.0 ? 1.0 : std::abs(extent.low) * 0.1;
  return {extent.low - around, extent.high + around};
}

class ValueAxis {
 public:
  ValueAxis(Extent values, double begin, double end, bool logarithmic)
      : values_(values), begin_(begin), end_(end), logarithmic_(logarithmic) {}

  [[nodiscard]] double at(double value) const {
    return begin_ + (end_ - begin_) * (map(value) - map(values_.low)) /
                        (map(values_.high) - map(values_.low));
  }
  [[nodiscard]] std::vector<double> ticks() const {
    if (!logarithmic_) return round_ticks(values_.low, values_.high);
    std::vector<double> ticks;
    for (double power = std::floor(map(values_.low)); power <= map(values_.high); ++power) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = factor * std::pow(10.0, power);
        if (tick >= values_.low && tick <= values_.high) ticks.push_back(tick);
      }
    }
    return ticks.size() < 2 ? round_ticks(values_.low, values_.high) : ticks;
  }

 private:
  [[nodiscard]] double map(double value) const { return logarithmic_ ? std::log10(value) : value; }

  Extent values_;
  double begin_;
  double end_;
  bool logarithmic_;
};

std::string path_through(const std::vector<double>& x,
                         const std::vector<double>& y,
                         const ValueAxis& across,
                         const ValueAxis& up) {
  std::string path;
  for (std::size_t i = 0; i < x.size(); ++i) {
    path += fmt::format("{}{} {}", i == 0 ? "M" : "L", px(across.at(x[i])), px(up.at(y[i])));
  }
  return path;
}

std::string band(const ReducedSeries& series, const ValueAxis& across, const ValueAxis& up) {
  std::string path = path_through(series.x, series.high, across, up);
  for (std::size_t i = series.x.size(); i-- > 0;) {
    path += fmt::format("L{} {}", px(across.at(series.x[i])), px(up.at(series.low[i])));
  }
  return path + "Z";
}

/// A value of a sorted list that such a share of it lies below.
double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

/// The range of all curves, and of nearly all of their bands: a spike may leave the picture. The
/// first steps of a run, whose loss is far above all that follows, would leave no height for the
/// rest: there the axis ends where the rest does.
Extent range_of(const std::vector<ReducedSeries>& all) {
  constexpr double kSpikes = 0.02;
  Extent whole;
  Extent rest;
  for (const ReducedSeries& series : all) {
    if (series.x.empty()) continue;
    const auto early = static_cast<std::size_t>(kEarlyShare * static_cast<double>(series.x.size()));
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      whole.include(series.mean[i]);
      if (i >= early) rest.include(series.mean[i]);
    }
    std::vector<double> low(series.low.begin() + static_cast<std::ptrdiff_t>(early),
                            series.low.end());
    std::vector<double> high(series.high.begin() + static_cast<std::ptrdiff_t>(early),
                             series.high.end());
    std::sort(low.begin(), low.end());
    std::sort(high.begin(), high.end());
    rest.include(quantile(low, kSpikes));
    rest.include(quantile(high, 1.0 - kSpikes));
  }
  whole.include(rest.low);
  whole.include(rest.high);
  if (whole.high - rest.low > kMostOverRest * (rest.high - rest.low) && rest.high > rest.low) {
    whole.high = rest.high + (rest.high - rest.low) * 0.5;
  }
  return whole;
}

/// Four significant digits, for the script.
nlohmann::json rounded(const std::vector<double>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const double value : values) {
    list.push_back(nlohmann::json::parse(fmt::format("{:.5g}", value)));
  }
  return list;
}

}  // namespace

ReducedSeries in_pieces(const std::vector<double>& x,
                        const std::vector<double>& y,
                        std::size_t most) {
  ReducedSeries reduced;
  const std::size_t pieces = std::min(most, x.size());
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t begin = piece * x.size() / pieces;
    const std::size_t end = (piece + 1) * x.size() / pieces;
    Extent extent;
    double sum = 0.0;
    std::size_t count = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(y[i])) continue;
      extent.include(y[i]);
      sum += y[i];
      ++count;
    }
    if (count == 0) continue;
    reduced.x.push_back(count == 1 ? x[begin + (end - begin - 1) / 2]
                                   : (x[begin] + x[end - 1]) / 2.0);
    reduced.mean.push_back(sum / static_cast<double>(count));
    reduced.low.push_back(extent.low);
    reduced.high.push_back(extent.high);
  }
  return reduced;
}

std::vector<double> smoothed(const std::vector<double>& values) {
  constexpr std::ptrdiff_t kShare = 80;
  const std::ptrdiff_t count = std::ssize(values);
  std::vector<double> sums = {0.0};
  for (const double value : values)
    sums.push_back(sums.back() + value);
  std::vector<double> smooth;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::ptrdiff_t half = std::min({count / kShare, i, count - 1 - i});
    const auto begin = static_cast<std::size_t>(i - half);
    const auto end = static_cast<std::size_t>(i + half + 1);
    smooth.push_back((sums[end] - sums[begin]) / static_cast<double>(end - begin));
  }
  return smooth;
}

std::vector<double> round_ticks(double low, double high) {
  constexpr double kMost = 6.0;
  const double least = (high - low) / kMost;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  double step = 10.0 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= least) step = factor * power;
  }
  std::vector<double> ticks;
  for (double tick = std::ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9;
       tick += step) {
    ticks.push_back(std::abs(tick) < step * 1e-9 ? 0.0 : tick);
  }
  return ticks;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  constexpr std::array kUnits = {std::pair{1e15, "P"}, std::pair{1e12, "T"}, std::pair{1e9, "G"},
                                 std::pair{1e6, "M"}, std::pair{1e3, "k"}};
  for (const auto& [unit, name] : kUnits) {
    if (size >= unit * 0.99995) return fmt::format("{:.4g}{}", value / unit, name);
  }
  if (size != 0.0 && size < 1e-3) return fmt::format("{:.3g}", value);
  return fmt::format("{:.4g}", value);
}

bool LineChart::has_values() const {
  return std::any_of(series.begin(), series.end(), [](const ChartSeries& one) {
    return std::any_of(one.y.begin(), one.y.end(), [](double y) { return std::isfinite(y); });
  });
}

std::string LineChart::html() const {
  std::vector<ReducedSeries> reduced;
  Extent steps;
  for (const ChartSeries& one : series) {
    reduced.push_back(in_pieces(one.x, one.y, kPieces));
    for (const double x : reduced.back().x)
      steps.include(x);
  }
  Extent values = range_of(reduced);
  const bool in_logarithms = logarithmic && values.low > 0.0;
  if (from_zero) values.include(0.0);
  values = widened(values);
  if (!in_logarithms && !from_zero) {
    const double margin = 0.04 * (values.high - values.low);
    values.low -= margin;
    values.high += margin;
  } else if (from_zero) {
    values.high *= 1.04;
  }
  const ValueAxis across(widened(steps), kPlot.x, kPlot.x + kPlot.width, false);
  const ValueAxis up(values, kPlot.y + kPlot.height, kPlot.y, in_logarithms);

  SvgCanvas svg = SvgCanvas::in_page(kWidth, kHeight, title);
  constexpr double kLabel = 11.0;
  for (const double tick : up.ticks()) {
    svg.line(kPlot.x, up.at(tick), kPlot.x + kPlot.width, up.at(tick), "class=\"grid\"");
    svg.text(kPlot.x - 6.0, up.at(tick) + 4.0,
             {.size = kLabel, .anchor = Anchor::kEnd, .look = "soft"}, short_number(tick));
  }
  for (const double tick : across.ticks()) {
    if (tick != std::floor(tick)) continue;
    svg.text(across.at(tick), kPlot.y + kPlot.height + 17.0,
             {.size = kLabel, .anchor = Anchor::kMiddle, .look = "soft"}, short_number(tick));
  }
  svg.line(kPlot.x, kPlot.y + kPlot.height, kPlot.x + kPlot.width, kPlot.y + kPlot.height,
           "class=\"rule\"");
  svg.begin_group("clip-path=\"url(#plot)\"");
  for (std::size_t i = 0; i < series.size(); ++i) {
    if (series[i].x.size() <= kPieces) continue;
    svg.path(band(reduced[i], across, up), fmt::format("class=\"band run{}\"", series[i].run));
  }
  nlohmann::json data = {{"x0", kPlot.x},
                         {"x1", kPlot.x + kPlot.width},
                         {"w", kWidth},
                         {"low", widened(steps).low},
                         {"high", widened(steps).high},
                         {"series", nlohmann::json::array()}};
  for (std::size_t i = 0; i < series.size(); ++i) {
    const ChartSeries& one = series[i];
    const bool smooths = one.noisy && reduced[i].x.size() >= kNoisy;
    svg.path(path_through(reduced[i].x, reduced[i].mean, across, up),
             fmt::format("class=\"curve run{}{}{}\"", one.run, one.dashed ? " dashed" : "",
                         smooths ? " faint" : ""));
    if (smooths) {
      svg.path(path_through(reduced[i].x, smoothed(reduced[i].mean), across, up),
               fmt::format("class=\"curve run{}\"", one.run));
    }
    for (std::size_t k = 0; reduced[i].x.size() <= kDots && k < reduced[i].x.size(); ++k) {
      svg.circle(across.at(reduced[i].x[k]), up.at(reduced[i].mean[k]), 2.5,
                 fmt::format("class=\"dot run{}\"", one.run));
    }
    data["series"].push_back({{"name", one.name},
                              {"run", one.run},
                              {"x", rounded(reduced[i].x)},
                              {"y", rounded(reduced[i].mean)}});
  }
  svg.end_group();
  svg.line(0.0, kPlot.y, 0.0, kPlot.y + kPlot.height, "class=\"pointer\"");  // the script's
  // "</" would end the script's element.
  std::string json = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (std::size_t at = json.find("</"); at != std::string::npos; at = json.find("</", at + 3)) {
    json.replace(at, 2, "<\\/");
  }
  return fmt::format(
      "<figure class=\"chart\"><figcaption>{}{}</figcaption>{}"
      "<script type=\"application/json\">{}</script></figure>\n",
      escape_xml(title),
      unit.empty() ? "" : fmt::format(" <span class=\"soft\">{}</span>", escape_xml(unit)),
      std::move(svg).finish(), json);
}

}  // namespace dstrain
