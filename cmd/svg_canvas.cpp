#include "cmd/svg_canvas.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace dstrain {
namespace {

std::string_view attribute_of(Anchor anchor) {
  switch (anchor) {
    case Anchor::kStart:
      return "";
    case Anchor::kMiddle:
      return " text-anchor=\"middle\"";
    case Anchor::kEnd:
      return " text-anchor=\"end\"";
  }
  return "";
}

/// The rest of an element that has begun: its closing slash, or its tooltip and end tag.
std::string rest_of(std::string_view name, std::string_view tooltip) {
  return tooltip.empty() ? "/>\n"
                         : fmt::format("><title>{}</title></{}>\n", escape_xml(tooltip), name);
}

/// The number of characters in UTF-8 text: all bytes but continuation bytes.
std::size_t characters_of(std::string_view words) {
  return static_cast<std::size_t>(std::count_if(words.begin(), words.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

SvgCanvas::SvgCanvas(double width,
                     double height,
                     std::string_view title,
                     std::string_view style_sheet)
    : svg_(fmt::format(
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
          "viewBox=\"0 0 {0} {1}\" role=\"img\" "
          "font-family=\"system-ui, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif\">\n"
          "<title>{2}</title>\n<style>\n{3}</style>\n",
          px(width),
          px(height),
          escape_xml(title),
          style_sheet)) {}

SvgCanvas SvgCanvas::in_page(double width, double height, std::string_view name) {
  return SvgCanvas(fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                               px(width), px(height), escape_xml(name)));
}

void SvgCanvas::box(const SvgBox& box, std::string_view look, std::string_view tooltip) {
  svg_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}{}", px(box.x),
                      px(box.y), px(box.width), px(box.height), look, rest_of("rect", tooltip));
}

void SvgCanvas::line(double x1, double y1, double x2, double y2, std::string_view look) {
  svg_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", px(x1), px(y1),
                      px(x2), px(y2), look);
}

void SvgCanvas::path(std::string_view path, std::string_view look, std::string_view tooltip) {
  svg_ += fmt::format("<path d=\"{}\" {}{}", path, look, rest_of("path", tooltip));
}

void SvgCanvas::circle(double x, double y, double radius, std::string_view look) {
  svg_ +=
      fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" {}/>\n", px(x), px(y), px(radius), look);
}

void SvgCanvas::text(double x, double y, const SvgText& text, std::string_view words) {
  svg_ += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\"{}{} class=\"{}\">{}</text>\n",
                      px(x), px(y), px(text.size), attribute_of(text.anchor),
                      text.bold ? " font-weight=\"600\"" : "", text.look, escape_xml(words));
}

void SvgCanvas::begin_group(std::string_view attributes) {
  svg_ += fmt::format("<g {}>\n", attributes);
}

void SvgCanvas::end_group() {
  svg_ += "</g>\n";
}

std::string SvgCanvas::finish() && {
  svg_ += "</svg>\n";
  return std::move(svg_);
}

std::string px(double value) {
  constexpr double kTenths = 10.0;
  const double rounded = std::round(value * kTenths) / kTenths;
  return rounded == std::floor(rounded) ? fmt::format("{:.0f}", rounded)
                                        : fmt::format("{:.1f}", rounded);
}

double width_of(std::string_view words, double size) {
  constexpr double kOfSize = 0.6;  // of a wide sans serif such as DejaVu; others are narrower
  return static_cast<double>(characters_of(words)) * size * kOfSize;
}

double size_to_fit(std::string_view words, double size, double width) {
  return std::min(size, size * width / std::max(width_of(words, size), 1.0));
}

std::string escape_xml(std::string_view words) {
  constexpr unsigned char kFirstPrintable = 0x20;
  std::string escaped;
  for (const char c : words) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else if (static_cast<unsigned char>(c) < kFirstPrintable && c != '\t' && c != '\n') {
      escaped += "\uFFFD";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace dstrain
