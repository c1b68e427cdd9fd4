// Ranks that nobody launches: each is started by hand, with its environment.
#include <chrono>
#include <csignal>
#include <memory>
#include <string>

#include <catch2/catch.hpp>

#include "tests/failure/tiny_run.h"
#include "tests/harness/reserved_port.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::Program;
using testing::TinyRun;

constexpr const char* kToken = "5f0c3b9a7e1d2468ace013579bdf8642";
constexpr const char* kGuess = "6f0c3b9a7e1d2468ace013579bdf8642";

std::unique_ptr<Program> start_rank(const TinyRun& run,
                                    int rank,
                                    std::uint16_t port,
                                    const std::string& token) {
  return std::make_unique<Program>(
      std::vector<std::string>{testing::dstrain_binary(), "train", run.path("config.json"), "--set",
                               "training.steps=3"},
      Program::Environment{{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"MASTER_ADDR", "localhost"},
                           {"MASTER_PORT", std::to_string(port)},
                           {"DSTRAIN_TOKEN", token}});
}

TEST_CASE("ranks started by hand, in any order, train together", "[failure]") {
  const TinyRun run;
  const testing::ReservedPort reserved;
  const std::uint16_t port = reserved.number();
  const auto second = start_rank(run, 1, port, kToken);
  std::this_thread::sleep_for(std::chrono::milliseconds{200});
  const auto first = start_rank(run, 0, port, kToken);
  CHECK(first->wait(seconds{20}) == 0);
  CHECK(second->wait(seconds{5}) == 0);
  INFO(first->err() << second->err());
  CHECK(run.steps() == 3);
}

TEST_CASE("a rank with another token is turned away with the code of a rendezvous", "[failure]") {
  const TinyRun run;
  const testing::ReservedPort reserved;
  const std::uint16_t port = reserved.number();
  const auto first = start_rank(run, 0, port, kToken);
  const auto stranger = start_rank(run, 1, port, kGuess);
  CHECK(stranger->wait(seconds{20}) == 4);
  CHECK_THAT(stranger->last_line(), Contains("token") && !Contains(kGuess));
  CHECK_FALSE(first->wait(std::chrono::milliseconds{0}));  // it still waits for the real one
  const auto second = start_rank(run, 1, port, kToken);
  CHECK(first->wait(seconds{20}) == 0);
  CHECK(second->wait(seconds{5}) == 0);
}

TEST_CASE("one rank needs no environment and stops at a signal", "[failure]") {
  const TinyRun run;
  Program train({testing::dstrain_binary(), "train", run.path("config.json")});
  REQUIRE(run.reaches_step(3));
  train.signal(SIGINT);
  CHECK(train.wait(seconds{10}) == 130);
  CHECK_FALSE(run.read("run/checkpoints/latest").empty());
}

}  // namespace
}  // namespace dstrain
