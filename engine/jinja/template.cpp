#include "engine/jinja/template.h"

#include "engine/jinja/parser.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain::jinja {

Template::Template(std::string_view source) {
  if (!is_utf8(source)) throw TemplateError("is not UTF-8");
  program_ = parse(source);
}

Template::Rendered Template::render(const Names& names) const {
  Rendering rendering;
  Frame frame{rendering, rendering.text, std::make_shared<Scope>(nullptr)};
  for (const auto& [name, value] : names) {
    frame.scope->set(name, value);
  }
  run(program_, frame);
  return {std::move(rendering.text), std::move(rendering.generated), rendering.lost_generated};
}

}  // namespace dstrain::jinja
