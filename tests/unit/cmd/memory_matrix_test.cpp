#include "cmd/memory/memory_matrix.h"

#include <algorithm>
#include <sstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

constexpr int kRanks = 4;
constexpr EstimatedDevice kDevice{.cuda = false, .threads = 1, .ranks_per_host = kRanks};

LoadedConfig gpt2(const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load_config("configs/gpt2-124m.json", {.overrides = overrides});
  resolve_config(loaded, kRanks);
  return loaded;
}

TEST_CASE("every row is what such a run would hold", "[cmd][estimate]") {
  const std::vector<MatrixRow> rows = memory_matrix(gpt2, kRanks, kDevice);
  REQUIRE(rows.size() == 12);
  const std::vector<std::string> granularities = {"none", "selective", "full"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Config config = gpt2({"zero_optimization.stage=" + std::to_string(i / 3),
                                "activation_checkpointing.granularity=" + granularities[i % 3]})
                              .config;
    CHECK(rows[i].bytes == fullest(outline_run(config, kRanks).stages).bytes);
    CHECK(rows[i].refused.empty());
    CHECK(rows[i].overhead_bytes > 0);
  }
  CHECK(std::count_if(rows.begin(), rows.end(),
                      [](const MatrixRow& row) { return row.as_configured; }) == 1);
  CHECK_THAT(matrix_text(rows, std::nullopt), Contains("◂ as configured"));
}

TEST_CASE("a combination that is refused keeps its reason", "[cmd][estimate]") {
  const ConfigWith no_stage_3 = [](const std::vector<std::string>& overrides) {
    LoadedConfig loaded = gpt2(overrides);
    if (loaded.config.zero.stage == 3) throw ConfigError("not \"3\", said\nsomebody, here");
    return loaded;
  };
  const std::vector<MatrixRow> rows = memory_matrix(no_stage_3, kRanks, kDevice);
  CHECK(rows[9].refused == "not \"3\", said\nsomebody, here");
  CHECK(rows[8].refused.empty());
  const MemoryLimit limit{.bytes = rows[8].total_bytes(), .name = "limit", .accelerator = {}};
  const auto json = nlohmann::json::parse(matrix_json(rows, limit));
  CHECK(json[8]["fits"] == true);
  CHECK(json[0]["fits"] == false);
  CHECK(json[9]["refused"] == rows[9].refused);
  CHECK_FALSE(json[9].contains("bytes"));

  std::istringstream csv(matrix_csv(rows, limit));
  std::string header;
  std::string row;
  std::getline(csv, header);
  std::getline(csv, row);
  CHECK(std::count(header.begin(), header.end(), ',') == std::count(row.begin(), row.end(), ','));
  CHECK_THAT(matrix_csv(rows, limit), Contains(",\"not \"\"3\"\", said\nsomebody, here\"\n"));
}

}  // namespace
}  // namespace dstrain
