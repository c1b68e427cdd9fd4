// What `dstrain trace --tables` sums up of a rank's trace.
#include "cmd/trace/trace_tables.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/config/arch/model_counts.h"
#include "engine/config/config_json.h"
#include "engine/train/trace/trace_file.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Contains;
using checkpoint_test::ScratchFolder;

constexpr const char* kConfig = R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4,
  "model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "max_position_embeddings": 64},
  "data": {"train": "data/train", "sequence_length": 32}, "training": {"steps": 10}})";

TraceEvent event(TraceKind kind, const char* name, std::int64_t begin, std::int64_t end) {
  return {.kind = kind, .name = name, .begin_ns = begin * 1000, .end_ns = end * 1000};
}

TraceEvent sum_of_bytes(std::int64_t begin, std::int64_t end, std::int64_t bytes) {
  TraceEvent sum = event(TraceKind::kCollective, "all_reduce", begin, end);
  sum.bytes = bytes;
  sum.group = "data-parallel";
  sum.purpose = "gradient";
  sum.ranks = 4;
  return sum;
}

/// Two steps, each of a forward and a backward through an embedding, two blocks and the head.
void write_trace(const std::filesystem::path& folder) {
  std::vector<TraceEvent> events;
  for (const std::int64_t step : {0, 1000}) {
    std::int64_t at = step;
    for (const char* const pass : {"forward", "backward"}) {
      const std::int64_t begin = at;
      const std::int64_t each = std::string(pass) == "forward" ? 50 : 100;
      for (const char* const unit : {"embedding", "blocks.0", "blocks.1", "head"}) {
        TraceEvent linear = event(TraceKind::kOperation, "linear", at + 1, at + 5);
        linear.flops = 20'000;
        linear.bytes = 600;
        linear.sizes = std::string_view(unit) == "head" ? "10×10×100" : "10×20×50";
        events.push_back(linear);
        events.push_back(event(TraceKind::kAction, "within a unit", at + 2, at + 3));
        events.push_back(event(TraceKind::kAction, unit, at, at + each));
        at += each;
      }
      events.push_back(event(TraceKind::kAction, pass, begin, at));
    }
    events.push_back(sum_of_bytes(at, at + 100, 1'000'000));
    events.push_back(sum_of_bytes(at + 100, at + 150, 1'000'000));
    events.push_back(sum_of_bytes(at + 150, at + 160, 8));
    events.push_back(event(TraceKind::kAction, "optimizer", at, at + 160));
    events.push_back(event(TraceKind::kAction, "step", step, at + 160));
  }
  write_rank_trace(folder,
                   {.rank = 0, .world_size = 4, .steps = {1, 2}, .tracks = {{"compute", events}}});
}

TEST_CASE("transfers are summed by kind and size, with both bandwidths", "[trace]") {
  const ScratchFolder folder;
  write_trace(folder.path());
  const TraceTables tables = tables_of(folder.path(), 0);
  CHECK(tables.steps == 2);
  CHECK(tables.step_seconds == Approx(760e-6));
  REQUIRE(tables.transfers.size() == 2);
  const TransferRow& large = tables.transfers[0];
  CHECK(large.bytes == 1'000'000);
  CHECK(large.count == 4);
  CHECK(large.seconds == Approx(300e-6));
  CHECK(large.algorithm_rate() == Approx(4e6 / 300e-6 * 1e-9));
  CHECK(large.bus_rate() == Approx(1.5 * large.algorithm_rate()));  // 2 · 3/4
  CHECK(tables.transfers[1].count == 2);
  REQUIRE(tables.operations.size() == 2);
  CHECK(tables.operations[0].name == "linear");
  CHECK(tables.operations[0].sizes == "10×20×50");
  CHECK(tables.operations[0].count == 6.0);
  CHECK(tables.operations[0].seconds == Approx(24e-6));
  CHECK(tables.operations[0].flops == 120e3);
  CHECK(tables.operations[0].bytes == 3600.0);
  CHECK(tables.operations[1].sizes == "10×10×100");
  CHECK(tables.operations[1].count == 2.0);
  REQUIRE(tables.units.size() == 4);
  CHECK(tables.units[1].name == "blocks.0");
  CHECK(tables.units[1].forward == Approx(50e-6));
  CHECK(tables.units[1].backward == Approx(100e-6));
  CHECK_THAT(to_text(tables), Contains("rank 0, 2 steps of 0.76 ms") && Contains("all_reduce") &&
                                  Contains("976.6 KiB") && Contains("blocks.1") &&
                                  Contains("linear") && Contains("10×10×100") &&
                                  Contains("5.0       0.1\n"));  // GFLOP/s and GB/s
}

TEST_CASE("units' FLOPs are those of the model, shared out over the ranks", "[trace]") {
  const ScratchFolder folder;
  write_trace(folder.path());
  std::ofstream(folder.path() / "config.resolved.json") << kConfig;
  std::ofstream(folder.path() / "metrics.jsonl") << R"({"step":1})" << '\n';
  std::ofstream(folder.path() / "history.jsonl")
      << R"({"event":"start","step":0,"ranks":4,"layout":{"data":2,"tensor":2}})" << '\n';
  TraceTables tables = tables_of(folder.path(), 0);
  add_flops(overview_of(folder.path(), std::chrono::milliseconds(0)), tables);
  const double flops =
      std::accumulate(tables.units.begin(), tables.units.end(), 0.0,
                      [](double sum, const UnitRow& unit) { return sum + unit.flops; });
  const Config config = load_config((folder.path() / "config.resolved.json").string(), {}).config;
  CHECK(4.0 * flops == Approx(8.0 * 32.0 * flops_per_token(config.model, 32)));
  CHECK(tables.units[0].flops == 0.0);  // the embedding multiplies nothing
  const auto json = nlohmann::json::parse(to_json_text(tables));
  CHECK(json["units"][0]["flops"].is_null());
  CHECK(json["units"][1]["flops"].get<double>() == tables.units[1].flops);

  // A matrix that is not trained has no gradient of its own, a third of its work.
  auto frozen = nlohmann::json::parse(kConfig);
  frozen["training"]["freeze"] = {"head.*"};
  std::ofstream(folder.path() / "config.resolved.json") << frozen;
  TraceTables part = tables_of(folder.path(), 0);
  add_flops(overview_of(folder.path(), std::chrono::milliseconds(0)), part);
  const auto head_of = [](const TraceTables& of) {
    return std::find_if(of.units.begin(), of.units.end(),
                        [](const UnitRow& unit) { return unit.name == "head"; })
        ->flops;
  };
  CHECK(head_of(part) == Approx(head_of(tables) * 2.0 / 3.0));
  CHECK(part.units[1].flops == tables.units[1].flops);

  std::ofstream(folder.path() / "config.resolved.json") << "{";
  TraceTables without = tables_of(folder.path(), 0);
  add_flops(overview_of(folder.path(), std::chrono::milliseconds(0)), without);
  CHECK(without.units[1].flops == 0.0);
}

}  // namespace
}  // namespace dstrain
