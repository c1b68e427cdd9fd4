#include "tests/parity/sent_and_owed.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/load_states.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/training_state.h"
#include "tests/harness/thread_world.h"

namespace dstrain::test {

double gradient_bytes(const RunPlan& plan, GradientTravel travel) {
  double bytes = 0.0;
  const double n = plan.mesh.degree(kGradientAxes);
  plan.traffic_of(travel).for_each([&](const Transfer& transfer, std::int64_t times) {
    if (transfer.purpose != Purpose::kGradient) return;
    const double passes = transfer.op == Op::kAllReduce ? 2.0 : 1.0;
    bytes += passes * static_cast<double>(times * transfer.bytes()) * (n - 1) / n;
  });
  return bytes;
}

std::filesystem::path newest_checkpoint(const RunFolder& folder, const std::string& output) {
  const auto latest = CheckpointStore(folder.path() / output / "checkpoints").latest();
  REQUIRE(latest);
  return *latest;
}

std::vector<std::string> data_files(const RunFolder& folder, const std::string& output, int ranks) {
  const std::filesystem::path checkpoint = newest_checkpoint(folder, output);
  std::vector<std::string> data;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(checkpoint / fmt::format("rank-{:05}.safetensors", rank), std::ios::binary);
    data.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    CHECK(data.back().size() > 1000);
  }
  return data;
}

std::map<std::string, double> owed(const LoadedConfig& config,
                                   const std::filesystem::path& checkpoint,
                                   int ranks) {
  const auto held = thread_world(ranks, [&](Rendezvous& rank) {
    Engine engine(make_run_plan(config.config, rank.world_size(), rank.world_rank()), rank,
                  make_cpu_backend(1), 1);
    static_cast<void>(load_states(engine, checkpoint));
    std::map<std::string, double> sums;
    for_each_state(engine, StateExtent::kEverything, OwnStates::all(engine.plan()),
                   [&](const StatePart& part, const CheckpointTensor& tensor) {
                     const bool is_servers = part.state == kServersState;
                     if (!part.is_own && !is_servers) return;
                     const std::string state = is_servers ? kWorkersState : part.state;
                     std::int64_t place = part.piece.flat.begin;
                     for (const double value : tensor.data.as<float>()) {
                       sums[fmt::format("{} {} {}", state, part.piece.tensor, place++)] +=
                           is_servers ? value : value / ranks;
                     }
                   });
    return sums;
  });
  std::map<std::string, double> all;
  for (const auto& sums : held) {
    for (const auto& [name, sum] : sums)
      all[name] += sum;
  }
  return all;
}

void check_owed(const std::map<std::string, double>& now,
                const std::map<std::string, double>& before) {
  CHECK(now.size() == before.size());
  double worst = 0.0;
  double largest = 0.0;
  for (const auto& [name, sum] : before) {
    worst = std::max(worst, std::abs(now.at(name) - sum));
    largest = std::max(largest, std::abs(sum));
  }
  CHECK(largest > 0.0);
  CHECK(worst <= 1e-6 * largest);
}

}  // namespace dstrain::test
