// How many threads each rank gets, and on which cores: in a rank that something else started, and
// by the launcher.
#include "cmd/rank/rank_threads.h"

#include <map>
#include <numeric>
#include <string>

#include <catch2/catch.hpp>

#include "cmd/launch/launch_layout.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using Variables = std::map<std::string, std::string>;

EnvironmentLookup lookup_in(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::optional<int> omp(const std::string& value) {
  return omp_num_threads(lookup_in({{"OMP_NUM_THREADS", value}}));
}

std::vector<int> first_cores(int number) {
  std::vector<int> cores(static_cast<std::size_t>(number));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

UsableCores cores_of(int number, std::optional<double> quota = {}) {
  return {.ids = first_cores(number), .quota = quota};
}

TEST_CASE("OMP_NUM_THREADS is a number, or a list of which the first counts", "[cmd][threads]") {
  CHECK_FALSE(omp_num_threads(lookup_in({})));
  CHECK_FALSE(omp(""));
  CHECK(omp("3") == 3);
  CHECK(omp("4,2") == 4);
  for (const char* wrong : {"none", "0", "-1", "2.5", "2 ", ",2"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(omp(wrong), ConfigError);
  }
  CHECK_THROWS_WITH(omp("none"), Contains("OMP_NUM_THREADS=\"none\"") && Contains("at least 1"));
}

TEST_CASE("the config comes before OMP_NUM_THREADS, and that before the share of the cores",
          "[cmd][threads]") {
  const RankEnv alone;
  const auto threads = [&](const ThreadWish& wish) {
    return rank_threads(alone, wish, cores_of(8), 8);
  };
  CHECK(threads({}).number == 8);
  CHECK(threads({}).notices.empty());

  const RankThreads by_environment = threads({.environment = 3});
  CHECK(by_environment.number == 3);
  REQUIRE(by_environment.notices.size() == 1);
  CHECK_THAT(by_environment.notices[0], Contains("threads=3 a rank, by OMP_NUM_THREADS"));

  const RankThreads by_both = threads({.config = 5, .environment = 3});
  CHECK(by_both.number == 5);
  REQUIRE(by_both.notices.size() == 1);
  CHECK_THAT(by_both.notices[0], Contains("threads=5 a rank, by training.threads; "
                                          "OMP_NUM_THREADS=3 is not used"));
  CHECK(threads({.config = 3, .environment = 3}).notices.empty());
  CHECK_FALSE(by_both.warning);

  const RankThreads too_many = threads({.config = 9});
  CHECK(too_many.number == 9);
  CHECK_THAT(too_many.warning.value_or(""), Contains("threads=9 a rank: more than its share"));

  // The launcher has decided, and said so.
  const RankThreads launched = rank_threads({.threads = 4}, {.environment = 4}, cores_of(2), 8);
  CHECK(launched.number == 4);
  CHECK(launched.notices.empty());
  CHECK_FALSE(launched.warning);
}

TEST_CASE("ranks share what a host lets them use, unless each was given cores of its own",
          "[cmd][threads]") {
  const RankEnv one_of_three{.local_size = 3};
  CHECK(rank_threads(one_of_three, {}, cores_of(8), 8).number == 2);
  CHECK(rank_threads(one_of_three, {}, cores_of(2), 8).number == 2);  // bound, by srun or mpirun
  CHECK(rank_threads(one_of_three, {}, cores_of(2), 2).number == 1);
  CHECK(rank_threads(one_of_three, {}, cores_of(64, 6.0), 64).number == 2);
  CHECK(rank_threads(one_of_three, {}, cores_of(64, 1.0), 64).number == 1);
  CHECK(rank_threads({}, {}, cores_of(64, 2.0), 64).number == 2);
  CHECK(rank_threads(one_of_three, {}, cores_of(4, 6.0), 64).number == 4);
}

/// A machine of so many cores, of which so many may be busy at a time.
class FakeMachine final : public HostAccess {
 public:
  FakeMachine(int cores, int usable) : cores_(cores), usable_(usable) {}
  asio::io_context& loop() override { throw std::logic_error("not in this test"); }
  std::map<std::string, std::string> find_silent(const std::vector<launcher::Host>&) override {
    return {};
  }
  Master choose_master(const std::vector<launcher::Host>&) override { return {}; }
  [[nodiscard]] Machine machine_of(const std::string&) const override {
    return {.id = "", .cores = first_cores(cores_), .num_usable_cores = usable_};
  }
  launcher::Spawner& spawner_for(const std::vector<launcher::Host>&) override {
    throw std::logic_error("not in this test");
  }

 private:
  int cores_;
  int usable_;
};

struct Launched {
  std::vector<std::string> threads;
  std::vector<std::vector<int>> cores;
  bool drops_spin_count = false;
};

Launched launch(const FakeMachine& machine,
                int ranks,
                std::optional<int> threads = {},
                const std::vector<std::string>& assignments = {}) {
  launcher::Host host{.name = "localhost"};
  host.slots.resize(static_cast<std::size_t>(ranks));
  LaunchFlags flags;
  flags.environment.assignments = assignments;
  TrainingConfig training;
  training.threads = threads;
  const launcher::Job job =
      make_job({host}, {.address = "127.0.0.1", .port = 1}, {}, training, flags, machine);
  Launched launched;
  for (const launcher::ProcessSpec& process : job.processes) {
    const Variables variables(process.environment.begin(), process.environment.end());
    // The last of a name counts for the process; a map keeps the first.
    std::string number;
    for (const auto& [name, value] : process.environment) {
      if (name == "OMP_NUM_THREADS") number = value;
    }
    CHECK(variables.at("DSTRAIN_THREADS") == number);
    launched.threads.push_back(number);
    launched.cores.push_back(process.cores);
    launched.drops_spin_count = std::find(process.unset.begin(), process.unset.end(),
                                          "GOMP_SPINCOUNT") != process.unset.end();
  }
  return launched;
}

using Threads = std::vector<std::string>;
using Cores = std::vector<std::vector<int>>;

TEST_CASE("the launcher gives each rank its own cores, and as many threads", "[cmd][threads]") {
  unsetenv("OMP_NUM_THREADS");
  const Launched launched = launch({4, 4}, 3);
  CHECK(launched.threads == Threads{"1", "1", "2"});
  CHECK(launched.cores == Cores{{0}, {1}, {2, 3}});
  CHECK_FALSE(launched.drops_spin_count);
  CHECK(launch({2, 2}, 3).threads == Threads{"1", "1", "1"});
  CHECK(launch({2, 2}, 3).cores == Cores{{0}, {1}, {0}});
}

TEST_CASE("under a quota ranks count their threads by it, and are bound to no cores",
          "[cmd][threads]") {
  unsetenv("OMP_NUM_THREADS");
  const Launched launched = launch({64, 2}, 1);
  CHECK(launched.threads == Threads{"2"});
  CHECK(launched.cores == Cores{{}});
  CHECK(launch({64, 3}, 2).threads == Threads{"1", "2"});
}

TEST_CASE("a rank's cores hold the threads that were asked for", "[cmd][threads]") {
  unsetenv("OMP_NUM_THREADS");
  CHECK(launch({4, 4}, 2, 1).threads == Threads{"1", "1"});
  CHECK(launch({4, 4}, 2, 1).cores == Cores{{0, 1}, {2, 3}});
  CHECK(launch({4, 4}, 2, 2).cores == Cores{{0, 1}, {2, 3}});
  CHECK(launch({4, 4}, 2, 3).threads == Threads{"3", "3"});
  CHECK(launch({4, 4}, 2, 3).cores == Cores{{}, {}});  // they take turns on all four
}

TEST_CASE("OMP_NUM_THREADS of the launcher, or of --env, is each rank's", "[cmd][threads]") {
  setenv("OMP_NUM_THREADS", "1", 1);
  CHECK(launch({4, 4}, 2).threads == Threads{"1", "1"});
  CHECK(launch({4, 4}, 2, {}, {"OMP_NUM_THREADS=2"}).threads == Threads{"2", "2"});
  CHECK(launch({4, 4}, 2, 2).threads == Threads{"2", "2"});
  unsetenv("OMP_NUM_THREADS");
}

TEST_CASE("who chooses OpenMP's way of waiting for the ranks chooses it alone", "[cmd][threads]") {
  CHECK(launch({4, 4}, 2, {}, {"OMP_WAIT_POLICY=active"}).drops_spin_count);
}

}  // namespace
}  // namespace dstrain
