// Flipped bits in what ranks hold more than once, and runs in which nothing flipped.
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <random>

#include <catch2/catch.hpp>

#include "engine/train/replica_watch.h"
#include "engine/train/run_training.h"
#include "kernels/core/caller_stream.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/harness/recording_communicator.h"
#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/parity/combination.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

using Catch::Matchers::Contains;

/// Flips a stage and a format; DSTRAIN_FLIPS asks for more, of which a table is printed.
int num_flips() {
  const char* const text = std::getenv("DSTRAIN_FLIPS");
  return text == nullptr ? 8 : std::atoi(text);
}

struct Layout {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int shard_ranks = -1;  ///< in stage 3
  [[nodiscard]] int ranks() const { return data * tensor * pipeline; }
};
// LLaMA's two key/value heads are shared on four tensor-parallel ranks; a tied table is on both
// ends of a pipeline; in groups of two every slice is on two ranks.
const Layout kLayouts[] = {{4, 1, 1}, {2, 2, 1}, {2, 1, 2}, {1, 4, 1}, {6, 1, 1, 2}, {4, 2, 1, 2}};

TinyOptions options_of(const Layout& layout, int stage, Precision precision) {
  return {.tied = true,
          .precision = precision,
          .micro_batch = 2,
          .zero_stage = stage,
          .zero = {.shard_ranks = layout.shard_ranks, .param_persistence_threshold = 1000},
          .tensor_parallel = {.size = layout.tensor},
          .pipeline = {.stages = layout.pipeline}};
}

/// One bit of what a rank keeps from step to step.
struct Flip {
  int rank = 0;
  RegionKind region = RegionKind::kParameters;
  int unit = 0;
  std::int64_t element = 0;  ///< of what the region holds of the unit
  int bit = 0;
};

const RegionKind kRegions[] = {RegionKind::kParameters, RegionKind::kMaster,
                               RegionKind::kFirstMoment, RegionKind::kSecondMoment};

/// A random bit, but not of the padding, which belongs to no parameter.
Flip random_flip(Engine& engine, std::mt19937_64& random) {
  const RunPlan& plan = engine.plan();
  while (true) {
    Flip flip{.rank = engine.world().rank(),
              .region = kRegions[random() % 4],
              .unit = static_cast<int>(random() % plan.shards.num_units())};
    if (!plan.memory.has(flip.region)) continue;
    const Range held = plan.memory.place(flip.region, flip.unit).held;
    const std::vector<PlacedPiece> pieces = plan.shards.pieces(flip.unit, held);
    if (pieces.empty()) continue;
    const PlacedPiece& piece = pieces[random() % pieces.size()];
    flip.element =
        piece.offset - held.begin + static_cast<std::int64_t>(random() % piece.piece.flat.size());
    flip.bit = static_cast<int>(random() % (8 * size_of(plan.memory.dtype(flip.region))));
    return flip;
  }
}

/// Done again it is undone.
void apply(Engine& engine, const Flip& flip) {
  const Tensor tensor = engine.arena().unit(flip.region, flip.unit);
  auto* const bytes =
      static_cast<std::uint8_t*>(tensor.data()) + flip.element * size_of(tensor.dtype());
  bytes[flip.bit / 8] ^= static_cast<std::uint8_t>(1U << (flip.bit % 8));
}

/// How often the ranks hold each element of the model, counted one by one, by region and tensor.
class Holders {
 public:
  void add(Engine& engine) {
    const std::lock_guard lock(mutex_);
    for_each_element(engine, [&](RegionKind region, int, std::int64_t, const std::string& tensor,
                                 std::int64_t index) {
      ++counts_[{region, tensor}][index];
    });
  }
  /// Holders of the element that a rank's flip is in.
  int of(Engine& engine, const Flip& flip) {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for_each_element(engine, [&](RegionKind region, int unit, std::int64_t element,
                                 const std::string& tensor, std::int64_t index) {
      if (region == flip.region && unit == flip.unit && element == flip.element) {
        found = counts_.at({region, tensor}).at(index);
      }
    });
    return found;
  }

 private:
  template <typename Visit>
  static void for_each_element(Engine& engine, const Visit& visit) {
    const RunPlan& plan = engine.plan();
    for (const RegionKind region : kRegions) {
      for (int unit = 0; plan.memory.has(region) && unit < plan.shards.num_units(); ++unit) {
        const Range held = plan.memory.place(region, unit).held;
        for (const PlacedPiece& placed : plan.shards.pieces(unit, held)) {
          const Piece& piece = placed.piece;
          for (std::int64_t flat = piece.flat.begin; flat < piece.flat.end; ++flat) {
            visit(region, unit, placed.offset - held.begin + flat - piece.flat.begin, piece.tensor,
                  index_in_whole(piece, flat));
          }
        }
      }
    }
  }

  static std::int64_t index_in_whole(const Piece& piece, std::int64_t flat) {
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (int dim = piece.shape.rank() - 1; dim >= 0; --dim) {
      index += (piece.box_start[dim] + flat % piece.box_extent[dim]) * stride;
      flat /= piece.box_extent[dim];
      stride *= piece.shape[dim];
    }
    return index;
  }

  std::mutex mutex_;
  std::map<std::pair<RegionKind, std::string>, std::map<std::int64_t, int>> counts_;
};

/// Whether the rank itself can see the flip: it holds the parameter and its master, and after the
/// flip the one is not the other, rounded.
bool shows_on_the_rank(Engine& engine, const Flip& flip) {
  const MemoryPlan& memory = engine.plan().memory;
  if (!memory.has(RegionKind::kMaster)) return false;
  const std::int64_t element =
      flip.element + memory.place(flip.region, flip.unit).held.begin;  // of the unit
  const Range owned = memory.owned(flip.unit);
  if (element < owned.begin || element >= owned.end) return false;
  if (flip.region == RegionKind::kParameters) return true;
  if (flip.region != RegionKind::kMaster) return false;
  const auto rounded = [&] {
    const float master = engine.arena()
                             .unit(flip.region, flip.unit)
                             .as<float>()[static_cast<std::size_t>(flip.element)];
    return memory.options().compute_dtype == DType::kBF16 ? to_bf16(master).bits
                                                          : to_f16(master).bits;
  };
  const auto after = rounded();
  apply(engine, flip);
  const auto before = rounded();
  apply(engine, flip);
  return before != after;
}

/// The same number on every rank: rank `root`'s.
std::int64_t agreed(Engine& engine, std::int64_t number, int root) {
  auto halves = std::bit_cast<std::array<std::int32_t, 2>>(number);
  CallerStream host;
  engine.world().broadcast({halves.data(), DType::kI32, Shape{2}}, root, Purpose::kControl, host);
  host.synchronize();
  return std::bit_cast<std::int64_t>(halves);
}

/// Numbers of flips, and of those that were found, by stage and region.
using Table = std::map<std::pair<int, RegionKind>, std::pair<int, int>>;

/// A flip a step, before its forward pass; the check before its update must find it exactly where
/// there is something to compare it with. Afterwards it is undone.
void flip_and_check(const Layout& layout, int stage, Precision precision, int flips, Table& table) {
  const TinyOptions options = options_of(layout, stage, precision);
  const Config config = tiny_config(options, layout.ranks());
  Holders holders;
  std::vector<std::string> faults;
  std::mutex mutex;
  thread_world(layout.ranks(), [&](Rendezvous& rendezvous) {
    const std::unique_ptr<Engine> engine = make_tiny_engine(config, rendezvous, nullptr);
    ReplicaCheck check(*engine);
    holders.add(*engine);
    const int me = engine->world().rank();
    std::mt19937_64 of_all(static_cast<std::uint64_t>(stage + 1));
    std::mt19937_64 own(static_cast<std::uint64_t>(100 * stage + me));
    train_tiny_step(*engine, options, 0);
    for (int trial = 1; trial <= flips; ++trial) {
      const auto victim = static_cast<int>(of_all() % static_cast<std::uint64_t>(layout.ranks()));
      Flip flip;
      bool shows = false;
      engine->wait_for_communication();
      engine->world().barrier();  // all have told what they hold
      if (me == victim) {
        flip = random_flip(*engine, own);
        apply(*engine, flip);
        shows = holders.of(*engine, flip) > 1 || shows_on_the_rank(*engine, flip);
      }
      shows = agreed(*engine, shows ? 1 : 0, victim) != 0;
      train_tiny_step(*engine, options, trial, [&] {
        const ReplicaCheck::Result result = check.run(1.0);
        if (me != victim) return;
        apply(*engine, flip);
        const std::lock_guard lock(mutex);
        auto& [tried, found] = table[{stage, flip.region}];
        ++tried;
        found += result.difference ? 1 : 0;
        const std::string what =
            fmt::format("stage {} dp{} tp{} pp{}: bit {} of element {} of the {} of {} on rank {}",
                        stage, layout.data, layout.tensor, layout.pipeline, flip.bit, flip.element,
                        name_of(flip.region), engine->plan().shards.unit(flip.unit).name, victim);
        if (result.difference.has_value() != shows) {
          faults.push_back(what + (shows ? " was not found" : " was found"));
        } else if (shows) {
          const ReplicaDifference& d = *result.difference;
          const bool names_rank = std::count(d.wrong.begin(), d.wrong.end(), victim) == 1;
          const bool is_sure = d.wrong.size() == 1 || d.wrong.size() == 2;
          const bool same_region = d.is_own || d.what == name_of(flip.region);
          if (!names_rank || !is_sure || !same_region ||
              d.unit != engine->plan().shards.unit(flip.unit).name) {
            faults.push_back(what + ", but " + d.sentence());
          }
        }
      });
    }
    return 0;
  });
  CHECK(faults == std::vector<std::string>{});
}

TEST_CASE("a flipped bit is found at the next check exactly where there is a copy of it",
          "[parity][replicas]") {
  const int flips = num_flips();
  Table table;
  for (const int stage : {0, 1, 2, 3}) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      for (const Layout& layout : kLayouts) {
        CAPTURE(stage, static_cast<int>(precision), layout.data, layout.tensor, layout.pipeline);
        flip_and_check(layout, stage, precision, flips, table);
      }
    }
  }
  if (std::getenv("DSTRAIN_FLIPS") == nullptr) return;
  for (const auto& [key, counts] : table) {
    std::cout << "stage " << key.first << ", " << name_of(key.second) << ": " << counts.second
              << " of " << counts.first << " flips found\n";
  }
}

TEST_CASE("a flipped bit of a bias that is not trained is found", "[parity][replicas]") {
  for (const int tensor : {1, 2, 4}) {
    CAPTURE(tensor);
    TinyOptions options = tiny_experts("deepseek_v3");
    options.micro_batch = 1;
    options.tensor_parallel = {.size = tensor};
    const Config config = tiny_config(options, 4);
    const auto found = thread_world(4, [&](Rendezvous& rendezvous) {
      const std::unique_ptr<Engine> engine = make_tiny_engine(config, rendezvous, nullptr);
      ReplicaCheck check(*engine);
      train_tiny_step(*engine, options, 0);
      if (check.run(1.0).difference) return std::string("differs before");
      if (engine->world().rank() == 2) {
        const BufferRef bias = engine->plan().blueprint.untrained().at(0).buffer;
        auto* const bits = static_cast<std::uint32_t*>(engine->arena().buffer(bias).data());
        bits[3] ^= 1U << 4U;
      }
      const ReplicaCheck::Result result = check.run(1.0);
      return result.difference ? result.difference->sentence() : "is not found";
    });
    CHECK_THAT(found.front(), Contains("rank 2") && Contains("blocks.1"));
  }
}

TEST_CASE("an undisturbed run never differs, whatever shares it", "[parity][replicas]") {
  int met = 0;
  for (const Combination& combination : all_combinations()) {
    if (!combination.fast || combination.carrier != Carrier::kThreads ||
        met++ % testing::one_in_if_sanitized(3) != 0) {
      continue;
    }
    TinyOptions options = combination.options;
    CAPTURE(combination.name());
    const Config config = tiny_config(options, combination.ranks());
    const auto found = thread_world(combination.ranks(), [&](Rendezvous& rendezvous) {
      const std::unique_ptr<Engine> engine = make_tiny_engine(config, rendezvous, nullptr);
      ReplicaCheck check(*engine);
      std::string differences;
      const auto compare = [&] {
        const ReplicaCheck::Result result = check.run(1.0);
        if (result.difference) differences += result.difference->sentence() + "\n";
      };
      for (int step = 0; step < 3; ++step) {
        train_tiny_step(*engine, options, step, compare);
        compare();
      }
      return differences;
    });
    for (const std::string& differences : found) {
      CHECK(differences.empty());
      UNSCOPED_INFO(differences);
    }
  }
}

TEST_CASE("a run compares at its interval alone, by one small all-gather, and stops with the place",
          "[parity][replicas]") {
  TinyOptions options{.precision = Precision::kBF16, .micro_batch = 2, .zero_stage = 1};
  Config config = tiny_config(options, 4);
  config.training.replica_check_interval = 3;
  constexpr int kFlipped = 9;
  const auto messages = thread_world(4, [&](Rendezvous& rendezvous) {
    CollectiveLog traffic;
    RecordingRendezvous recorded(rendezvous, traffic);
    const std::unique_ptr<Engine> engine = make_tiny_engine(config, recorded, nullptr);
    ReplicaWatch watch(*engine, config.training.replica_check_interval, 0);
    for (int step = 1; step <= 9; ++step) {
      traffic.clear();
      engine->wait_for_communication();
      if (step == kFlipped && engine->world().rank() == 2) {
        apply(*engine, {.region = RegionKind::kParameters, .unit = 1, .element = 5, .bit = 3});
      }
      try {
        train_tiny_step(*engine, options, step - 1, [&] {
          if (watch.is_due(step)) watch.check(step, /*saved_step=*/4);
        });
      } catch (const StateCorrupted& error) {
        return fmt::format("{}", error.what());
      }
      check(traffic.count(Op::kAllGather, Purpose::kIntegrity) == (step % 3 == 0 ? 1 : 0) &&
                traffic.bytes(Op::kAllGather, Purpose::kIntegrity) <= 4 * 144,
            "step {} compares other than once in three", step);
      watch.add_step(0.1);
    }
    return std::string("never stopped");
  });
  for (const std::string& message : messages) {
    CHECK(message == messages.front());
    CHECK_THAT(message, Contains("step 9: rank 2 (host "));
    CHECK_THAT(message, Contains(") has other parameters of blocks.0 than ranks 0, 1 and 3; at "
                                 "step 6 all copies were equal"));
    CHECK_THAT(message, Contains("the newest checkpoint, of step 4, is older"));
  }
}

TEST_CASE("an automatic interval is the same on all ranks, whatever time each of them sees",
          "[parity][replicas]") {
  TinyOptions options{.precision = Precision::kBF16, .micro_batch = 2};
  const Config config = tiny_config(options, 2);
  REQUIRE_FALSE(config.training.replica_check_interval);
  const auto checked = thread_world(2, [&](Rendezvous& rendezvous) {
    const std::unique_ptr<Engine> engine = make_tiny_engine(config, rendezvous, nullptr);
    ReplicaWatch watch(*engine, config.training.replica_check_interval, 0);
    std::vector<int> steps;
    double seconds = 0.0;
    for (int step = 1; step <= 2000; ++step) {
      if (watch.is_due(step)) {
        const auto begin = std::chrono::steady_clock::now();
        watch.check(step, -1);
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        steps.push_back(step);
      }
      // Each rank sees times of its own; as if a check took a thirtieth of a step.
      watch.add_step(0.02 + 0.001 * engine->world().rank() + (seconds > 0.0 ? seconds : 0.0));
      seconds = 0.0;
    }
    return steps;
  });
  CHECK(checked[0] == checked[1]);
  REQUIRE_FALSE(checked[0].empty());
  CHECK(checked[0].front() == 5);
}

}  // namespace
}  // namespace dstrain::test
