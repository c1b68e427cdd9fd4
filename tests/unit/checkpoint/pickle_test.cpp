#include <cmath>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/pytorch/pickle_value.h"
#include "tests/unit/checkpoint/hand_made_zip.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using namespace std::string_literals;
using Catch::Matchers::Contains;

namespace {

PickleDocument parse(const std::string& pickle) {
  return parse_pickle(std::as_bytes(std::span(pickle)));
}

/// A pickle of protocol 2 with this program.
std::string program(const std::string& opcodes) {
  return "\x80\x02" + opcodes + ".";
}

void refuses(const std::string& pickle, const std::string& reason) {
  CHECK_THROWS_WITH(parse(pickle), Contains(reason));
  CHECK_THROWS_AS(parse(pickle), CheckpointError);
}

std::string text(const std::string& content) {
  return "X" + number(static_cast<std::uint32_t>(content.size())) + content;
}

std::string integer(std::int64_t value) {
  return "\x8a\x08" + number(value);
}

std::string storage(const std::string& type, const std::string& key, std::int64_t elements) {
  return "(" + text("storage") + "c" + type + "\n" + text(key) + text("cpu") + integer(elements) +
         "tQ";
}

std::string tensor(const std::string& stored,
                   std::int64_t offset,
                   const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& strides) {
  const auto tuple = [](const std::vector<std::int64_t>& values) {
    std::string text = "(";
    for (const std::int64_t value : values) {
      text += integer(value);
    }
    return text + "t";
  };
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + stored + integer(offset) + tuple(shape) +
         tuple(strides) + "\x89" + "}" + "tR";
}

const std::string kFloats = storage("torch\nFloatStorage", "0", 10);

}  // namespace

TEST_CASE("a pickle's values are read, and used as nothing else", "[checkpoint][pytorch]") {
  const std::string pickle =
      program("}(" + text("n") + "K\x05" + text("f") + "G\xbf\xe0\0\0\0\0\0\0"s + text("o") +
              "cos\nsystem\n(" + text("true") + "tR" + "u");
  const PickleDocument document = parse(pickle);
  const PickleValue root = document.root();
  CHECK(root.at("n").integer("n") == 5);
  CHECK(root.at("n").number("n") == 5.0);
  CHECK(root.at("f").number("f") == -0.5);
  CHECK_FALSE(root.find("absent"));
  CHECK_THROWS_WITH(root.at("absent"), "no \"absent\" in a dict with 3 keys: \"n\", \"f\", \"o\"");
  CHECK_THROWS_WITH(root.at("n").text("n"), "n is an integer, expected a text");
  CHECK_THROWS_WITH(root.at("f").integer("f"), "f is a float, expected an integer");
  CHECK_THROWS_WITH(root.at("o").items("o"),
                    "o is an object of class os.system, expected a list, a tuple or a set");
  CHECK_THROWS_WITH(root.at("o").at("x"),
                    "what should hold \"x\" is an object of class os.system, expected a dict");
  CHECK(root.at("o").arguments("o").items("o")[0].text("argument") == "true");
  CHECK_THROWS_WITH(root.at("n").tensor("n"), "n is an integer, expected a tensor");
}

TEST_CASE("opcodes that are unknown, unread or misused are refused", "[checkpoint][pytorch]") {
  refuses("", "at byte 0: it was cut short");
  refuses("\x80", "bytes, 0 are left");
  refuses("\x80\x02", "at byte 2: it was cut short");
  refuses("}.", "begins with PROTO");
  refuses("\x80\x06N.", "protocol 6, expected 2 to 5");
  refuses("\x80\x01N.", "protocol 1");
  refuses(program("N") + "N", "1 bytes follow its end");
  refuses(program("\xf0"), "there is no opcode 0xf0");
  refuses(program("cos\nsystem\nios\nsystem\n"), "at byte 13, INST: torch.save does not write");
  refuses(program("I5\n"), "INT: torch.save does not write");
  refuses(program("\x97"), "NEXT_BUFFER");
  refuses(program(""), "STOP: the stack is empty");
  refuses(program("NN"), "more than one value is left");
  refuses(program("(N"), "more than one value is left");
  refuses(program("N("), "STOP: the stack is empty");
  refuses(program("0"), "POP: the stack is empty");
  refuses(program("(\x85"), "TUPLE1: the stack is empty");
  refuses(program("t"), "TUPLE: there is no mark");
  refuses(program("h\x07"), "nothing was remembered as 7");
  refuses(program("X\xff\xff\xff\xff"), "4294967295 bytes, 1 are left");
  refuses(program("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), "bytes, 1 are left");
  refuses(program("\x95\xff\xff\xff\xff\xff\xff\xff\x7f"), "FRAME: 9223372036854775807 bytes");
  refuses(program("cos"), "a name without its end");
  refuses(program("NNa"), "APPEND: appends to None");
  refuses(program("]NNs"), "SETITEM: sets 2 keys and values of a list");
  refuses(program("}(Nu"), "SETITEMS: sets 1 keys");
  refuses(program("NNb"), "BUILD: gives attributes to None");
  refuses(program("N)R"), "calls None, expected a class");
  refuses(program("cos\nsystem\nNR"), "arguments are None, expected a tuple");
  refuses(program("N(NQ"), "BINPERSID: a persistent id that is not a torch storage");
  refuses(program("NN\x93"), "a class's name is None");
  refuses(program("}(" + text("a") + "N" + text("a") + "Nu"), "the key \"a\" comes twice");
  refuses(program("}(K\x03NK\x03Nu"), "the key 3 comes twice");
  refuses(program("\x8fN\x90"), "ADDITEMS: there is no mark");
  refuses(program("N(N\x90"), "ADDITEMS: adds to None");
}

TEST_CASE("a tensor that reaches outside its storage is refused", "[checkpoint][pytorch]") {
  const auto with = [](auto... arguments) { return program(tensor(kFloats, arguments...)); };
  using Sizes = std::vector<std::int64_t>;
  CHECK(parse(with(0, Sizes{2, 5}, Sizes{5, 1})).root().tensor("t").num_elements() == 10);
  CHECK(parse(with(9, Sizes{}, Sizes{})).root().tensor("t").num_elements() == 1);
  CHECK(parse(with(10, Sizes{0}, Sizes{1})).root().tensor("t").num_elements() == 0);
  CHECK(parse(with(3, Sizes{100}, Sizes{0})).root().tensor("t").num_elements() == 100);
  refuses(with(1, Sizes{2, 5}, Sizes{5, 1}), "reaches element 10 of storage \"0\", which has 10");
  refuses(with(10, Sizes{}, Sizes{}), "reaches element 10");
  refuses(with(0, Sizes{2, 5}, Sizes{6, 1}), "reaches element 10");
  refuses(with(-1, Sizes{1}, Sizes{1}), "a tensor's offset is an integer -1");
  refuses(with(0, Sizes{-1}, Sizes{1}), "an extent is an integer -1");
  refuses(with(5, Sizes{5}, Sizes{-1}), "a stride is an integer -1");
  refuses(with(0, Sizes{INT64_MAX, 2}, Sizes{0, 0}), "more elements than can be counted");
  refuses(with(0, Sizes{INT64_MAX}, Sizes{INT64_MAX}), "more elements than can be counted");
  refuses(with(INT64_MAX, Sizes{2}, Sizes{1}), "more elements than can be counted");
  refuses(with(0, Sizes{1, 1}, Sizes{1}), "2 dims with 1 strides");
  refuses(with(0, Sizes(65, 1), Sizes(65, 1)), "65 dims");
  refuses(program(storage("torch\nQInt8Storage", "0", 1)), "the storage torch.QInt8Storage");
  refuses(program(storage("os\nFloatStorage", "0", 1)), "the storage os.FloatStorage");
  refuses(program(storage("torch\nFloatStorage", "0", -1)), "a storage's size is an integer -1");
  refuses(program(storage("torch\nFloatStorage", "0", INT64_MAX)),
          "a storage of 9223372036854775807");
  refuses(program(tensor(storage("torch.storage\nUntypedStorage", "0", 4), 0, {1}, {1})),
          "whose storage has no dtype");
  refuses(program("ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))tR"s), "arguments that are not");
  refuses(program("ctorch._utils\n_rebuild_parameter\n(NtR"), "is not given a tensor");
}

TEST_CASE("depth and repetition cost a pickle no more than its bytes", "[checkpoint][pytorch]") {
  std::string deep;
  for (int i = 0; i < 200'000; ++i) {
    deep += ']';
  }
  deep += std::string(199'999, 'a');
  const PickleDocument lists = parse(program(deep));
  CHECK(lists.num_values() == 200'000);
  CHECK(lists.root().items("list").size() == 1);
  // A list in itself, and 30 doublings that would be 2³⁰ values if anything copied.
  const PickleDocument self =
      parse(program("]q\x01h\x01"
                    "a"));
  CHECK(self.root().items("list")[0].is(self.root()));
  std::string doubled = "]";
  for (int i = 0; i < 30; ++i) {
    doubled +=
        "q\x01"
        "0](h\x01h\x01"
        "e";
  }
  CHECK(parse(program(doubled)).num_values() == 31);
  // A set of a list shares it: each call costs one value.
  std::string sets = "](" + std::string(1000, 'N') +
                     "eq\x01"
                     "0](";
  for (int i = 0; i < 1000; ++i) {
    sets += "c__builtin__\nset\nh\x01\x85R";
  }
  const PickleDocument shared = parse(program(sets + "e"));
  CHECK(shared.num_values() < 5000);
  CHECK(shared.root().items("list")[7].items("set").size() == 1000);
}

TEST_CASE("a pickle with any byte cut or changed ends in values or a sentence",
          "[checkpoint][pytorch]") {
  const std::string whole =
      program("}q\x01(" + text("w") + tensor(kFloats, 2, {2, 3}, {3, 1}) + text("s") +
              "ccollections\nOrderedDict\n)R(" + text("a") + "\x88" + "u" + text("l") +
              "](K\x01M\x02\x03J\xff\xff\xff\xff" + "e" + text("o") +
              "cargparse\nNamespace\n)\x81}(" + text("lr") + "G?\xe0\0\0\0\0\0\0"s + "ubu");
  REQUIRE_NOTHROW(parse(whole));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    CHECK_THROWS_AS(parse(whole.substr(0, at)), CheckpointError);
    for (int value = 0; value < 256; ++value) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      try {
        (void)parse(changed).root().described();
      } catch (const CheckpointError&) {
        continue;
      }
    }
  }
}
