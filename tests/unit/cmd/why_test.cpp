// What `dstrain why` says of runs whose files say where their time went.
#include <cstdio>
#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "cmd/why/findings.h"
#include "cmd/why/priced_run.h"
#include "engine/config/config_error.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using checkpoint_test::ScratchFolder;

void write_to(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Steps of a second each, of which `parts` say where they went.
void write_steps(const fs::path& folder, const std::string& parts, const std::string& more = "") {
  std::string lines;
  for (int step = 1; step <= 20; ++step) {
    lines += fmt::format(
        R"({{"step":{},"time":"2026-11-27T04:00:{:02}.000Z","step_seconds":0.9{},"time_split":{}}})"
        "\n",
        step, step, more, parts);
  }
  write_to(folder / "metrics.jsonl", lines);
}

void write_start(const fs::path& folder, const std::string& layout, const std::string& config) {
  write_to(folder / "config.resolved.json", config);
  write_to(folder / "history.jsonl",
           fmt::format(R"({{"event":"start","step":0,"ranks":4,"layout":{},"hosts":[["h0",2],)"
                       R"(["h1",2]]}})"
                       "\n",
                       layout));
}

std::vector<Finding> findings_in(const fs::path& folder, std::int64_t steps = 10) {
  const RunOverview run = overview_of(folder, std::chrono::milliseconds(0));
  return findings_of(run, account_of(folder, steps), rank_seconds(folder));
}

}  // namespace

TEST_CASE("the parts of the last steps are those of their lines, and the rest is said", "[why]") {
  const ScratchFolder folder;
  write_steps(folder.path(),
              R"({"compute":0.5,"data":0.1,"communication":{"tensor":0.125},"pipeline":0.05,)"
              R"("straggler":0.1,"rest":0.025,"slowest_rank":1,"slower_by":0.2})",
              R"(,"checkpoint_seconds":0.05)");
  const StepAccount account = account_of(folder.path(), 10);
  CHECK(account.first_step == 11);
  CHECK(account.last_step == 20);
  CHECK(account.wall == Approx(10.0));
  CHECK(account.compute == Approx(5.0));
  CHECK(account.communication[static_cast<std::size_t>(WaitFor::kTensor)] == Approx(1.25));
  CHECK(account.checkpoint == Approx(0.5));
  CHECK(account.unexplained() == Approx(0.5));
  CHECK(account.slowest_rank() == 1);
  CHECK(account.slower_by == Approx(0.2));
  CHECK(account_of(folder.path(), 1000).first_step == 2);
}

TEST_CASE("a slow rank, a slow group and an uneven stage are named", "[why]") {
  const ScratchFolder folder;
  write_steps(folder.path(),
              R"({"compute":0.5,"data":0,"communication":{"data":0.15},"pipeline":0,)"
              R"("straggler":0.3,"rest":0,"slowest_rank":3,"slower_by":0.6})");
  write_start(folder.path(), R"({"data":2,"tensor":2})", R"({"zero_optimization":{"stage":3}})");
  write_to(folder.path() / "ranks.jsonl",
           R"({"step":20,"seconds":{"computing":[1,1,1,1],"data":[0,0,0,0],)"
           R"("waiting_for":{"data":[0.1,0.3,0.1,0.4]}}})"
           "\n");
  const std::vector<Finding> slow = findings_in(folder.path());
  REQUIRE(slow.size() >= 2);
  CHECK_THAT(slow[0].what, Contains("rank 3 on h1 computes 60 % longer"));
  CHECK(slow[0].share == Approx(0.3));
  CHECK_THAT(slow[1].what, Contains("among ranks 1, 3 on h0 and h1"));
  CHECK(slow[1].sets == std::vector<std::string>{"zero_optimization.overlap_comm=true"});

  write_steps(folder.path(), R"({"compute":0.5,"data":0,"pipeline":0.4,"straggler":0,"rest":0,)"
                             R"("slowest_rank":2,"slower_by":0})");
  write_start(folder.path(), R"({"data":2,"pipeline":2})",
              R"({"gradient_accumulation_steps":4,"pipeline":{"partition":[1,3]}})");
  write_to(folder.path() / "ranks.jsonl",
           R"({"step":20,"seconds":{"computing":[1,1,3,3],"data":[0,0,0,0]}})"
           "\n");
  const std::vector<Finding> uneven = findings_in(folder.path());
  REQUIRE_FALSE(uneven.empty());
  CHECK_THAT(uneven[0].what, Contains("stage 1 computes 50 % longer"));
  CHECK(uneven[0].sets == std::vector<std::string>{"pipeline.partition=null"});
}

TEST_CASE("the host whose bytes are waited for is named, by the newest file", "[why]") {
  const ScratchFolder folder;
  write_steps(folder.path(), R"({"compute":0.5,"data":0,"communication":{"data":0.3},"pipeline":0,)"
                             R"("straggler":0,"rest":0,"slowest_rank":0,"slower_by":0})");
  const auto start = [&](const std::string& hosts) {
    write_to(folder.path() / "config.resolved.json", "{}");
    write_to(folder.path() / "history.jsonl",
             R"({"event":"start","step":0,"ranks":4,"layout":{"data":4},"hosts":)" + hosts + "}\n");
  };
  const auto line = [](const std::string& bytes) {
    return R"({"step":20,"seconds":{"computing":[1,1,1,1],"data":[0,0,0,0],"bytes_waited_for":)" +
           bytes + "}}\n";
  };
  start(R"([["a",1],["b",1],["c",1],["d",1]])");
  write_to(folder.path() / "ranks.jsonl", line("[0.9,0,0,0]"));
  write_to(folder.path() / "ranks.recent.json", line("[0.1,0.1,0.9,0.2]"));
  const std::vector<Finding> one = findings_in(folder.path());
  REQUIRE_FALSE(one.empty());
  CHECK_THAT(one[0].what,
             Contains("bytes from and to c, 9.0 times as long as for those of other hosts"));
  CHECK(one[0].share == Approx(0.3));  // 0.9 s by three others, in steps of a second
  write_to(folder.path() / "ranks.recent.json", line("[0.6,0.5,0.6,0.5]"));
  for (const Finding& finding : findings_in(folder.path())) {
    CHECK(finding.what.find("bytes from and to") == std::string::npos);
  }
  start(R"([["a",2],["b",2]])");
  CHECK_THAT(findings_in(folder.path())[0].what, Contains("bytes between a and b"));
}

TEST_CASE("a change is priced with what the run measured", "[why]") {
  const ScratchFolder folder;
  // Half of what is not computing is for bytes, as the fitted rates must say.
  write_steps(folder.path(),
              R"({"compute":0.5,"data":0,"communication":{"data":0.25},"pipeline":0,)"
              R"("straggler":0,"rest":0,"slowest_rank":0,"slower_by":0})");
  write_start(folder.path(), R"({"data":4})",
              R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                  "gradient_accumulation_steps": 2, "zero_optimization": {"overlap_comm": false},
                  "model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 64,
                            "intermediate_size": 128, "num_hidden_layers": 4,
                            "num_attention_heads": 4, "num_key_value_heads": 2,
                            "max_position_embeddings": 64},
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                  "data": {"train": "data/train", "sequence_length": 64},
                  "training": {"steps": 100, "device": "cpu", "output_dir": "runs/x"}})");
  const RunOverview run = overview_of(folder.path(), std::chrono::milliseconds(0));
  const PricedRun priced(run, account_of(folder.path(), 10));
  // Nine tenths of a third of the time hide behind computing.
  const auto overlap = priced.gain({"zero_optimization.overlap_comm=true"});
  REQUIRE(overlap);
  CHECK(*overlap == Approx(0.3).epsilon(0.05));
  CHECK(priced.gain({"zero_optimization.overlap_comm=false"}).value() == Approx(0.0).margin(1e-9));
  // Twice the micro-batches for each sum of gradients, which half as much travels for.
  const auto rarer = priced.gain({"gradient_accumulation_steps=4", "train_batch_size=64"});
  REQUIRE(rarer);
  CHECK(*rarer == Approx(1.0 / 6.0).epsilon(0.1));
  // A layout that the written batch does not fit: what follows from it is left open.
  CHECK(priced.gain({"tensor_parallel.size=2"}));
  CHECK_FALSE(priced.gain({"tensor_parallel.size=3"}));
  CHECK_FALSE(priced.gain({}));

  write_start(folder.path(), R"({"data":4})", R"({"of": "another version"})");
  const RunOverview other = overview_of(folder.path(), std::chrono::milliseconds(0));
  CHECK_FALSE(PricedRun(other, account_of(folder.path(), 10))
                  .gain({"zero_optimization.overlap_comm=true"}));
}

TEST_CASE("what stands in the way of training is said with the key that would help", "[why]") {
  const ScratchFolder folder;
  write_steps(folder.path(), R"({"compute":0.5,"data":0.2,"pipeline":0,"straggler":0,"rest":0})",
              R"(,"checkpoint_seconds":0.1)");
  write_start(folder.path(), R"({"data":4})", R"({"checkpoint":{"interval":1,"async":false}})");
  const std::vector<Finding> findings = findings_in(folder.path());
  REQUIRE(findings.size() >= 2);
  bool saves = false;
  bool data = false;
  for (const Finding& finding : findings) {
    saves = saves || finding.sets == std::vector<std::string>{"checkpoint.async=true"};
    data = data || finding.what.starts_with("ranks wait for their next batch");
  }
  CHECK(saves);
  CHECK(data);
}

TEST_CASE("files that do not fit each other name nobody, and break nothing", "[why]") {
  const ScratchFolder folder;
  write_steps(folder.path(),
              R"({"compute":0.5,"communication":{"data":0.2,"tensor":0.1},"pipeline":0.1,)"
              R"("straggler":0.1,"slowest_rank":9,"slower_by":0.5})",
              R"(,"checkpoint_seconds":0.1)");
  write_start(folder.path(), R"({"data":2,"tensor":2,"pipeline":8})",
              R"({"checkpoint":{"async":"yes"},"zero_optimization":[3],"pipeline":7})");
  write_to(folder.path() / "ranks.jsonl",
           R"({"step":20,"seconds":{"computing":[1,2,3],"data":[0,0,0],)"
           R"("waiting_for":{"data":[1,2,3],"tensor":[1,2,3]}}})"
           "\n");
  bool names_rank = false;
  for (const Finding& finding : findings_in(folder.path())) {
    CHECK_THAT(finding.what, !Contains("among ranks") && !Contains("stage 0 computes"));
    names_rank = names_rank || finding.what.starts_with("rank 9 computes");
  }
  CHECK(names_rank);
}

TEST_CASE("a run of an older version cannot be explained, and that is said", "[why]") {
  const ScratchFolder folder;
  write_to(folder.path() / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n");
  CHECK_THROWS_WITH(account_of(folder.path(), 10), Contains("where their time went"));
  write_to(folder.path() / "ranks.jsonl", R"({"step":1,"seconds":{"computing":[1,2],"data":[1]}})"
                                          "\n");
  CHECK(rank_seconds(folder.path()).computing.empty());
}

}  // namespace dstrain
