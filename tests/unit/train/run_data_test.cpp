#include "engine/train/run_data.h"

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/data/document_index.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using test::ScratchFolder;
using test::write_file;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";
constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]})"
    "\n";

DataConfig data_of(const ScratchFolder& folder) {
  write_file(folder / "chat.jinja", kTemplate);
  DataConfig data{.train = {{.prefix = folder / "chats.jsonl"}},
                  .validation = {{.prefix = folder / "plain"}},
                  .sequence_length = 16,
                  .samples = true};
  data.sample.tokenizer = "bytes";
  data.sample.chat_template = folder / "chat.jinja";
  data.sample.stop_token = ";";
  return data;
}

DataConfig prepared(const DataConfig& data, const ScratchFolder& folder) {
  return with_prepared_samples(data, "", folder / "run/data", [] { return false; });
}

TEST_CASE("JSON lines become samples once, whoever asks first", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "chats.jsonl", kChat);
  const DataConfig data = data_of(folder);
  std::vector<std::string> prefixes(4);
  std::vector<std::thread> ranks;
  for (std::string& prefix : prefixes) {
    ranks.emplace_back([&] { prefix = prepared(data, folder).train.front().prefix; });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  for (const std::string& prefix : prefixes) {
    CHECK(prefix == prefixes.front());
  }
  CHECK(DocumentIndex::open(prefixes.front())->has_modes());
  const auto written = fs::last_write_time(prefixes.front() + ".idx");
  CHECK(prepared(data, folder).train.front().prefix == prefixes.front());
  CHECK(fs::last_write_time(prefixes.front() + ".idx") == written);
  CHECK(prepared(data, folder).validation.front().prefix == folder / "plain");
}

TEST_CASE("other lines, another template or other rules make other samples", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "chats.jsonl", kChat);
  DataConfig data = data_of(folder);
  const std::string first = prepared(data, folder).train.front().prefix;
  data.sample.train_on = TrainOn::kAll;
  const std::string all = prepared(data, folder).train.front().prefix;
  CHECK(all != first);
  write_file(folder / "chat.jinja", std::string("-") + kTemplate);
  const std::string other = prepared(data, folder).train.front().prefix;
  CHECK(other != all);
  write_file(folder / "chats.jsonl", std::string(kChat) + kChat);
  const std::string longer = prepared(data, folder).train.front().prefix;
  CHECK(longer != other);
  CHECK(DocumentIndex::open(longer)->num_documents() == 2);
}

TEST_CASE("JSON lines without a tokenizer, and lines that are none, are refused", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "chats.jsonl", std::string(kChat) + "{}\n");
  DataConfig data = data_of(folder);
  CHECK_THROWS_WITH(prepared(data, folder), Contains("chats.jsonl:2: has none of \"messages\""));
  data.sample.tokenizer.clear();
  CHECK_THROWS_WITH(prepared(data, folder),
                    Contains("data.tokenizer: JSON lines need a tokenizer"));
}

}  // namespace
}  // namespace dstrain
