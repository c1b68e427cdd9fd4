// SvgCanvas: writes a picture as one SVG text, element by element, in the order of painting.
// Colours that change between light and dark are classes of the style sheet; sizes and places are
// attributes, in px.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace dstrain {

enum class Anchor { kStart, kMiddle, kEnd };

struct SvgText {
  double size = 12.0;  ///< of the font, px
  Anchor anchor = Anchor::kStart;
  bool bold = false;
  std::string_view look = "ink";  ///< class of the style sheet
};

struct SvgBox {
  double x = 0.0;
  double y = 0.0;  ///< of the upper edge
  double width = 0.0;
  double height = 0.0;
};

class SvgCanvas {
 public:
  /// `title` is also the name of a browser's tab.
  SvgCanvas(double width, double height, std::string_view title, std::string_view style_sheet);
  /// A picture inside a page, which has its style and gives it its width. `name` is for readers
  /// that cannot see it.
  static SvgCanvas in_page(double width, double height, std::string_view name);

  /// `look` is a whole attribute: class="grid" or fill="#24569a". `tooltip` may be empty.
  void box(const SvgBox& box, std::string_view look, std::string_view tooltip = {});
  void line(double x1, double y1, double x2, double y2, std::string_view look);
  /// `path` in SVG's path language.
  void path(std::string_view path, std::string_view look, std::string_view tooltip = {});
  void circle(double x, double y, double radius, std::string_view look);
  /// `y` is the base line.
  void text(double x, double y, const SvgText& text, std::string_view words);
  void begin_group(std::string_view attributes);
  void end_group();

  [[nodiscard]] std::string finish() &&;

 private:
  explicit SvgCanvas(std::string begin) : svg_(std::move(begin)) {}

  std::string svg_;
};

/// A length or a place: to a tenth of a px.
std::string px(double value);
/// The width of words in px, at most: fonts differ, so a wide one is assumed.
double width_of(std::string_view words, double size);
/// The largest font size, at most `size`, at which the words are at most `width` wide.
double size_to_fit(std::string_view words, double size, double width);
/// Escapes text for an element or an attribute's value. Characters that XML cannot hold become
/// U+FFFD.
std::string escape_xml(std::string_view words);

}  // namespace dstrain
