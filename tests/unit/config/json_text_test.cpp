// Positions, comments, and one clear sentence for everything that is not JSON.
#include "engine/config/json_text.h"

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

std::string syntax_error(std::string_view text) {
  return config_error_of([&] { parse_json_document(text, "x.json"); });
}

std::string file_error(std::string_view name, std::string_view text) {
  const TemporaryFolder folder;
  const std::string file = folder.write(std::string(name), text);
  const std::string message = config_error_of([&] { read_json_file(file); });
  REQUIRE(message.starts_with(file));
  return message.substr(file.size());
}

}  // namespace

TEST_CASE("every key and value knows its line and column", "[spec][json]") {
  const JsonNode root = parse_json_document(
      "{\n"
      "  \"a\": 12, \"b\": [true, \"x,]}\\\"\",\n"
      "\t{ \"c\" : null }],  // \"not\": \"here\"\n"
      "  \"ü\": -1.5e3, \"d\": {}\n"
      "}",
      "x.json");
  REQUIRE(root.members.size() == 4);
  CHECK(root.where == "x.json:1:1");
  CHECK(root.members[0].where == "x.json:2:3");
  CHECK(root.members[0].value.where == "x.json:2:8");
  const JsonNode& list = root.members[1].value;
  CHECK(list.where == "x.json:2:17");
  CHECK(list.items[0].where == "x.json:2:18");
  CHECK(list.items[1].where == "x.json:2:24");
  CHECK(list.items[1].text == "x,]}\"");
  CHECK(list.items[2].where == "x.json:3:2");
  CHECK(list.items[2].members[0].where == "x.json:3:4");
  CHECK(list.items[2].members[0].value.where == "x.json:3:10");
  CHECK(root.members[2].value.where == "x.json:4:8");  // ü is one column
  CHECK(root.members[2].value.number == -1500.0);
  CHECK(root.members[3].where == "x.json:4:16");
  CHECK(root.members[3].value.where == "x.json:4:21");
}

TEST_CASE("comments of three kinds and trailing commas are accepted", "[spec][json]") {
  const JsonNode root = parse_json_document(
      "# hash\n"
      "{ // slashes {[\n"
      "  /* block\n over lines */ \"url\": \"http://x#y/*z*/\",\n"
      "  \"list\": [1, 2, /* last */ ],\n"
      "}\n# end",
      "x.json");
  REQUIRE(root.members.size() == 2);
  CHECK(root.members[0].value.text == "http://x#y/*z*/");
  CHECK(root.members[0].where == "x.json:4:16");
  CHECK(root.members[1].value.items.size() == 2);
}

TEST_CASE("a comma that trails nothing is still an error", "[spec][json]") {
  CHECK(syntax_error("{,}") == "x.json:1:2: expected a key in double quotes, found ','");
  CHECK(syntax_error("{\"a\": 1,, \"b\": 2}") ==
        "x.json:1:9: expected a key in double quotes, found ','");
  CHECK_FALSE(syntax_error("{\"a\": [,]}").empty());
  CHECK_FALSE(syntax_error("{\"a\": [1,,]}").empty());
}

TEST_CASE("a syntax error says where it is and what was expected", "[spec][json]") {
  CHECK(syntax_error("{\"a\": 1\n \"b\": 2}") ==
        "x.json:2:2: expected ',' or '}' after the value of \"a\", found \"b\"");
  CHECK(syntax_error("{\"a\" 1}") == "x.json:1:6: expected ':' after the key \"a\", found '1'");
  CHECK(syntax_error("{lr: 1}") == "x.json:1:2: expected a key in double quotes, found lr");
  CHECK(syntax_error("{\"a\": tru}") ==
        "x.json:1:7: expected a value (a number, \"string\", true, false, null, {…} or […]), found "
        "tru");
  CHECK(syntax_error("{\"a\": [1, 2}") == "x.json:1:12: expected ',' or ']', found '}'");
  CHECK(syntax_error("{\"a\":\n {\"b\": 1") ==
        "x.json:2:9: the file ends, but the '{' at x.json:2:2 is not closed by a '}'");
  CHECK(syntax_error("{\"a\": \"x\n\"}") ==
        "x.json:1:7: a string is not closed by '\"' before the end of its line");
  CHECK(syntax_error("{} {}") == "x.json:1:4: expected the end of the file, found '{'");
  CHECK(syntax_error("{\"a\": 1 /* }") == "x.json:1:9: this /* comment is not closed");
}

TEST_CASE("a key given twice is an error that names both places", "[spec][json]") {
  CHECK(syntax_error("{\"o\": {\"lr\": 1,\n \"lr\": 2}}") ==
        "x.json:2:2: o.lr: given twice; the first is at x.json:1:8");
}

TEST_CASE("nesting beyond reason is refused, not a stack overflow", "[spec][json]") {
  const std::string deep = "{\"a\": " + std::string(100000, '[');
  CHECK(syntax_error(deep) == "x.json:1:70: nested more than 64 deep");
}

TEST_CASE("what is not JSON at all gets a sentence of its own", "[spec][json]") {
  CHECK(file_error("a.json", "") == ": is empty; expected a JSON object {…}");
  CHECK(file_error("a.json", " // nothing\n") == ": holds only blanks and comments; expected {…}");
  CHECK(file_error("a.yaml", "train_batch_size: 8\n") ==
        ": looks like YAML; a config is JSON: {\"key\": value, …}");
  CHECK(file_error("a.json", "[1, 2]") ==
        ":1:1: a config is one JSON object and begins with '{', but this does not");
  CHECK(file_error("a.json", std::string_view("\x7f"
                                              "ELF\x02\x00\x00",
                                              7)) ==
        ": is not a text file (byte 0x02 at offset 4); expected JSON");
  CHECK(config_error_of([] { read_json_file("/"); }) == "/: is a folder; expected a JSON file");
  CHECK(config_error_of([] { read_json_file("/nowhere/x.json"); }) ==
        "/nowhere/x.json: cannot open: No such file or directory");
}

TEST_CASE("bytes that are not UTF-8 are refused", "[spec][json]") {
  CHECK_THAT(syntax_error("{\"a\": \"\xff\"}"), Catch::StartsWith("x.json:1:7: invalid string"));
}

TEST_CASE("numbers are integers where they are whole", "[spec][json]") {
  const JsonNode root =
      parse_json_document("{\"v\": [5e8, 512.0, 0.5, 9223372036854775808, -3]}", "x");
  const std::vector<JsonNode>& v = root.members[0].value.items;
  CHECK(v[0].integer == 500000000);
  CHECK(v[1].integer == 512);
  CHECK_FALSE(v[2].integer.has_value());
  CHECK_FALSE(v[3].integer.has_value());  // beyond 64 bits
  CHECK(v[4].integer == -3);
}

TEST_CASE("a byte order mark does not hurt", "[spec][json]") {
  CHECK(parse_json_document("\xEF\xBB\xBF{\"a\": 1}", "x").members.size() == 1);
}

}  // namespace dstrain
