// LineChart: curves over steps as one picture, of as many runs as are compared. A run of a million
// steps is drawn in as many pieces as the picture is wide: the mean of each as a line, its smallest
// and largest value as a band.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dstrain {

struct ChartSeries {
  int run = 0;       ///< which colour it has
  std::string name;  ///< in the tooltip
  bool dashed = false;
  bool noisy = false;  ///< a smooth line is drawn over it
  std::vector<double> x;
  std::vector<double> y;  ///< a point is left out where it is not finite
};

struct LineChart {
  std::string title;
  std::string unit;          ///< of values, beside the title
  bool from_zero = false;    ///< the axis begins there
  bool logarithmic = false;  ///< where all values are above 0
  std::vector<ChartSeries> series;

  /// Whether there is a value to draw.
  [[nodiscard]] bool has_values() const;
  /// The figure in HTML: a picture, and its values for the page's script.
  [[nodiscard]] std::string html() const;
};

/// A series in pieces, with the smallest value, the largest and the mean of each.
struct ReducedSeries {
  std::vector<double> x;     ///< of the middle of each piece
  std::vector<double> mean;  ///< of finite values
  std::vector<double> low;
  std::vector<double> high;
};
ReducedSeries in_pieces(const std::vector<double>& x,
                        const std::vector<double>& y,
                        std::size_t most);

/// Returns the mean of each value and its neighbours: a fortieth of all, fewer towards the ends.
std::vector<double> smoothed(const std::vector<double>& values);

/// Returns round numbers in a range, some three to seven of them.
std::vector<double> round_ticks(double low, double high);
/// "1.25M", "300", "0.02", "1e-05".
std::string short_number(double value);

}  // namespace dstrain
