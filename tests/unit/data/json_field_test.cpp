#include "engine/data/input/json_field.h"

#include <string>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using Found = JsonField::Found;

TEST_CASE("the text of a line is the string at the path", "[data][input]") {
  struct Case {
    const char* path;
    const char* line;
    const char* text;
  };
  const Case cases[] = {
      {"text", R"({"text": "a"})", "a"},
      {"text", R"(  {"id": 1, "more": [1, {"text": "no"}], "text": "a", "x": null}  )", "a"},
      {"text", R"({"meta": {"text": "no"}, "text": "a"})", "a"},
      {"text", R"({"text": ""})", ""},
      {"text", R"({"text": "first", "text": "last"})", "last"},
      {"text", R"({"text": 3, "text": "last"})", "last"},
      {"text", "{\"text\": \"tab\\tline\\n\\u00e9 \\ud83d\\ude00 \xc3\xa9\"}",
       "tab\tline\n\xc3\xa9 \xf0\x9f\x98\x80 \xc3\xa9"},
      {"data.text", R"({"data": {"id": 2, "text": "deep"}})", "deep"},
      {"data.text", R"({"text": "no", "data": {"sub": {"text": "no"}, "text": "deep"}})", "deep"},
      {"a.b.c", R"({"b": {"c": "no"}, "a": {"c": "no", "b": {"c": "deep"}}})", "deep"},
      {"a.b", R"({"a": {"b": "old"}, "a": {"b": "new"}})", "new"},
      {"text", "\xef\xbb\xbf{\"text\": \"behind a byte order mark\"}", "behind a byte order mark"},
  };
  for (const Case& one : cases) {
    INFO(one.line);
    const JsonField::Line line = JsonField(one.path).read(one.line);
    CHECK(line.why.empty());
    CHECK(line.found == Found::kText);
    CHECK(line.text == one.text);
  }
}

TEST_CASE("a line without such a text says why", "[data][input]") {
  struct Case {
    const char* path;
    std::string line;
    Found found;
    const char* why;
  };
  const Case cases[] = {
      {"text", "{\"text\": \"a\"", Found::kNoJson, "is not JSON: byte 13: unexpected end of input"},
      {"text", "{\"text\": \"a\"} {}", Found::kNoJson, "is not JSON"},
      {"text", "{'text': 'a'}", Found::kNoJson, "is not JSON: byte 2: invalid literal"},
      {"text", "{\"text\": \"\xff\xfe\"}", Found::kNoJson, "ill-formed UTF-8"},
      {"text", R"({"text": "\ud83d alone"})", Found::kNoJson, "surrogate"},
      {"text", "{\"text\": 1e999}", Found::kNoJson, "number overflow"},
      {"text", "[1, 2]", Found::kNoObject, "is JSON, but not an object"},
      {"text", "[{\"text\": \"a\"}]", Found::kNoObject, "is JSON, but not an object"},
      {"text", "\"text\"", Found::kNoObject, "is JSON, but not an object"},
      {"text", "{\"content\": \"a\", \"id\": 1}", Found::kNoField,
       "has no field \"text\"; there are \"content\", \"id\""},
      {"text", "{}", Found::kNoField, "has no field \"text\": it is empty"},
      {"data.text", "{\"data\": \"text\"}", Found::kNoField, "there is \"data\""},
      {"data.text", "{\"data\": [{\"text\": \"a\"}]}", Found::kNoField, "no field \"data.text\""},
      {"a.b", R"({"a": {"b": "old"}, "a": 3})", Found::kNoField, "no field \"a.b\""},
      {"text", "{\"text\": 3}", Found::kNoString, "field \"text\" is a number, not a string"},
      {"text", "{\"text\": null}", Found::kNoString, "is null"},
      {"text", "{\"text\": [\"a\"]}", Found::kNoString, "is a list"},
      {"text", R"({"text": {"text": "a"}})", Found::kNoString, "is an object"},
      {"text", R"({"messages": [{"role": "user", "content": "a"}]})", Found::kConversation,
       "conversations are read with --chat"},
  };
  for (const Case& one : cases) {
    INFO(one.line);
    const JsonField::Line line = JsonField(one.path).read(one.line);
    CHECK(line.found == one.found);
    CHECK_THAT(line.why, Contains(one.why));
  }
  // Nested deeper than any stack would allow.
  const std::string deep(1'000'000, '[');
  CHECK(JsonField("text").read("{\"a\": " + deep).found == Found::kNoJson);
  // A text beside messages is a text.
  CHECK(JsonField("text").read(R"({"messages": [], "text": "a"})").text == "a");
}

TEST_CASE("a path has names between its dots", "[data][input]") {
  for (const char* path : {"", ".", "a.", ".a", "a..b"}) {
    CHECK_THROWS_WITH(JsonField(path), Contains("expected the name of a field"));
  }
}

}  // namespace
}  // namespace dstrain
