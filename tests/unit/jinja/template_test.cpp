// What jinja_peer_test.py cannot ask Python's Jinja: sentences of errors, the places of
// {% generation %}, and limits.
#include "engine/jinja/template.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/jinja/json.h"

namespace dstrain::jinja {
namespace {

std::string error_of(const std::string& source, const Template::Names& names = {}) {
  try {
    return "no error: " + Template(source).render(names).text;
  } catch (const TemplateError& error) {
    return error.what();
  }
}

TEST_CASE("an error of a template names its line and what it found", "[jinja]") {
  CHECK(error_of("a\n\n{{ x y }}") == "line 3: \"y\", expected }}");
  CHECK(error_of("{% if a %}\nb") == "line 2: the template ends without {% endif %}");
  CHECK(error_of("a\n{{ 'x' | shout }}") == "line 2: no filter \"shout\"");
  CHECK(error_of("\n{{ messages[0].role }}") == "line 2: \"messages\" is undefined");
  CHECK(error_of("{{ 1 + 'a' }}") == "line 1: cannot add an integer and a string");
  CHECK(error_of("{% include 'other' %}") == "line 1: no tag \"include\"");
  CHECK(error_of("{{ 'open }}") == "line 1: a string without its closing '");
}

TEST_CASE("what a template refuses itself is told apart, without a line", "[jinja]") {
  const Template refusing("{{ raise_exception('roles must alternate') }}");
  CHECK_THROWS_AS(refusing.render({}), TemplateRefusal);
  CHECK(error_of("{{ raise_exception('roles must alternate') }}") == "roles must alternate");
}

TEST_CASE("generated spans enclose what the template writes as the assistant's", "[jinja]") {
  const Template made(
      "{% for m in messages %}<{{ m }}>{% generation %}é{{ m }}.{% endgeneration %}{% endfor %}");
  const auto rendered =
      made.render({{"messages", from_json(nlohmann::ordered_json::parse(R"(["a", "bc"])"))}});
  CHECK(rendered.text == "<a>éa.<bc>ébc.");
  REQUIRE(rendered.generated.size() == 2);
  const auto text = [&](const Span& span) {
    return rendered.text.substr(span.begin, span.end - span.begin);
  };
  CHECK(text(rendered.generated[0]) == "éa.");
  CHECK(text(rendered.generated[1]) == "ébc.");
  CHECK_FALSE(rendered.lost_generated);
}

TEST_CASE("a generation within a macro has no known place", "[jinja]") {
  const Template made(
      "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}a{{ m() }}b");
  const auto rendered = made.render({});
  CHECK(rendered.text == "axb");
  CHECK(rendered.generated.empty());
  CHECK(rendered.lost_generated);
}

TEST_CASE("no template exhausts the stack", "[jinja]") {
  CHECK(error_of("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}") ==
        "line 1: nested too deeply");
  CHECK(error_of("{{ " + std::string(100000, '-') + "1 }}") == "line 1: nested too deeply");
  CHECK(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("without end") !=
        std::string::npos);
  std::string nested;
  for (int i = 0; i < 2000; ++i) {
    nested += "{% if 1 %}";
  }
  CHECK(error_of(nested) == "line 1: nested too deeply");
}

TEST_CASE("one template is rendered many times, each from its own names", "[jinja]") {
  const Template made(
      "{% set ns = namespace(n=0) %}{% for i in range(k) %}{% set ns.n = ns.n + i "
      "%}{% endfor %}{{ ns.n }}");
  CHECK(made.render({{"k", 4}}).text == "6");
  CHECK(made.render({{"k", 5}}).text == "10");
  CHECK(made.render({{"k", 4}}).text == "6");
}

}  // namespace
}  // namespace dstrain::jinja
