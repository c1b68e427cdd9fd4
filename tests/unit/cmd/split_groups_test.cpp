#include "cmd/launch/split_groups.h"

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::vector<launcher::Host> hosts_of(const std::vector<int>& slots) {
  std::vector<launcher::Host> hosts;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    hosts.push_back({fmt::format("node{}", i + 1), {}});
    for (int slot = 0; slot < slots[i]; ++slot) {
      hosts.back().slots.push_back(slot);
    }
  }
  return hosts;
}

/// 10 blocks in 3 stages; a micro-batch is 2 × 1024 tokens of width 512 in bf16: 2 MiB.
Config config_of(int tensor, bool sequence_parallel) {
  Config config;
  config.model.hidden_size = 512;
  config.model.num_layers = 10;
  config.data.sequence_length = 1024;
  config.batch.micro_batch_size = 2;
  config.precision = Precision::kBF16;
  config.pipeline.stages = 3;
  config.tensor_parallel = {.size = tensor, .sequence_parallel = sequence_parallel};
  return config;
}

TEST_CASE("groups inside a host are not worth a word", "[cmd][launch]") {
  CHECK_FALSE(describe_split_groups(config_of(1, false), hosts_of({3, 5, 1})));
  CHECK_FALSE(describe_split_groups(config_of(4, true), hosts_of({4, 12, 8})));
  CHECK_FALSE(describe_split_groups(config_of(8, false), hosts_of({8})));
}

TEST_CASE("a group that spans hosts is warned of, with host, number and bytes", "[cmd][launch]") {
  // Ranks 0-5 | 6-11: groups 0-3, 4-7, 8-11, of which the second is split.
  const auto warning = describe_split_groups(config_of(4, false), hosts_of({6, 6}));
  REQUIRE(warning);
  CHECK_THAT(*warning, Contains("4 does not divide host node1's slots=6") &&
                           Contains("1 of 3 tensor-parallel groups span hosts") &&
                           Contains("the all-reduces of every block") &&
                           // 4 all-reduces × 2·(t-1)/t × 2 MiB = 12 MiB, and 4 blocks at most
                           Contains("12.0 MiB a block, 48.0 MiB for the 4 of its stage"));
  const auto sequence_parallel = describe_split_groups(config_of(4, true), hosts_of({4, 2, 6}));
  REQUIRE(sequence_parallel);
  CHECK_THAT(*sequence_parallel, Contains("host node2's slots=2") &&
                                     Contains("1 of 3 tensor-parallel groups") &&
                                     Contains("all-gathers and reduce-scatters") &&
                                     // 10 passes × (t-1)/t × 2 MiB
                                     Contains("15.0 MiB a block, 60.0 MiB"));
}

TEST_CASE("a group over many hosts is one group", "[cmd][launch]") {
  const auto warning = describe_split_groups(config_of(4, false), hosts_of({1, 1, 1, 1, 4}));
  REQUIRE(warning);
  CHECK_THAT(*warning, Contains("host node1's slots=1") && Contains("1 of 2"));
}

}  // namespace
}  // namespace dstrain
