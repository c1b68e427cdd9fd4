// Template: a text with Jinja's tags, such as a model's chat template, which becomes text. It
// behaves as Jinja does with transformers' settings (trim_blocks, lstrip_blocks, no escaping for
// HTML, the immutable sandbox, {% break %} and {% continue %}, {% generation %}, raise_exception,
// strftime_now, tojson without escapes for HTML).
//
// It is our own, since Debian packages no Jinja for C++: its libraries for templates (ctemplate,
// kainjow-mustache) have other languages.
// tests/unit/jinja compares it with Python's Jinja.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/jinja/program.h"
#include "engine/jinja/value.h"

namespace dstrain::jinja {

class Template {
 public:
  /// Throws TemplateError, which begins with "line N: ".
  explicit Template(std::string_view source);

  using Names = std::vector<std::pair<std::string, Value>>;
  struct Rendered {
    std::string text;
    /// What {% generation %} encloses, in order. Empty where there is none.
    std::vector<Span> generated;
    /// Some of that was in a macro or a kept block, so that its place is not known.
    bool lost_generated;
  };
  /// May be called by several threads at once. Throws TemplateError, or TemplateRefusal where the
  /// template itself refuses what it is given.
  [[nodiscard]] Rendered render(const Names& names) const;

 private:
  Block program_;
};

}  // namespace dstrain::jinja
