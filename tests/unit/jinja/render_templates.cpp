// Renders templates for jinja_peer_test.py and scripts/check_chat: reads lines of JSON, {"source",
// "names"}, and answers each with {"text", "generated": [[begin, end], …]} (in bytes) or {"error"}.
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/jinja/json.h"
#include "engine/jinja/template.h"

int main() {
  using nlohmann::ordered_json;
  using namespace dstrain::jinja;
  for (std::string line; std::getline(std::cin, line);) {
    const ordered_json request = ordered_json::parse(line);
    ordered_json answer;
    try {
      const Template made(request.at("source").get_ref<const std::string&>());
      Template::Names names;
      for (const auto& [name, value] : request.at("names").items()) {
        names.emplace_back(name, from_json(value));
      }
      const Template::Rendered rendered = made.render(names);
      answer["text"] = rendered.text;
      answer["generated"] = ordered_json::array();
      for (const Span& span : rendered.generated) {
        answer["generated"].push_back({span.begin, span.end});
      }
    } catch (const TemplateError& error) {
      answer["error"] = error.what();
    }
    std::cout << answer.dump() << '\n';
  }
  return 0;
}
