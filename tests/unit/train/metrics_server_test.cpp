// The page that Prometheus asks for, over HTTP, beside clients that connect and say nothing.
#include "engine/train/observers/metrics_server.h"

#include <chrono>
#include <optional>

#include <asio.hpp>
#include <catch2/catch.hpp>
#include <httplib.h>

#include "engine/config/config_error.h"
#include "tests/harness/reserved_port.h"

namespace dstrain {
namespace {

using Catch::Contains;

constexpr std::chrono::seconds kPatience{4};  // below the five seconds that the library waits

std::string page_of(std::uint16_t port, const char* accept) {
  httplib::Client client("127.0.0.1", port);
  const auto answer = client.Get("/metrics", {{"Accept", accept}});
  REQUIRE(answer);
  CHECK(answer->status == 200);
  return answer->body;
}

}  // namespace

TEST_CASE("the metrics port tells of the last step, and keeps values that steps lack",
          "[records]") {
  const testing::ReservedPort port;
  MetricsServer server({.host = "127.0.0.1", .port = port.number()}, "r", 7);
  CHECK_THAT(page_of(port.number(), "text/plain"),
             Contains("dstrain_steps_total{run=\"r\"} 7\n") && !Contains("dstrain_train_loss"));
  server.on_phase(RunPhase::kTraining);
  server.on_step({.step = 8, .tokens = 64, .loss = 2.5, .validation_loss = 3.5}, false);
  server.on_step({.step = 9, .tokens = 72, .loss = 2.25}, false);
  const std::string page = page_of(port.number(), "application/openmetrics-text");
  CHECK_THAT(page, Contains("dstrain_steps_total{run=\"r\"} 9\n") &&
                       Contains("dstrain_train_loss{run=\"r\"} 2.25\n") &&
                       Contains("dstrain_eval_loss{run=\"r\"} 3.5\n") &&
                       Contains("phase=\"training\"} 1\n") && Catch::EndsWith("# EOF\n"));
}

TEST_CASE("two runs do not share a metrics port", "[records]") {
  const testing::ReservedPort port;
  const HostAndPort address{.host = "127.0.0.1", .port = port.number()};
  const MetricsServer first(address, "first", 0);
  CHECK_THROWS_WITH(MetricsServer(address, "second", 0),
                    Contains("cannot listen at 127.0.0.1:") && Contains("Address already in use"));
}

TEST_CASE("a client that says nothing keeps neither Prometheus nor the run's end for long",
          "[records]") {
  const testing::ReservedPort port;
  std::optional<MetricsServer> server(
      std::in_place, HostAndPort{.host = "127.0.0.1", .port = port.number()}, "r", 0);
  asio::io_context loop;
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 4; ++i) {
    silent.emplace_back(loop).connect({asio::ip::make_address("127.0.0.1"), port.number()});
  }
  const auto start = std::chrono::steady_clock::now();
  CHECK_THAT(page_of(port.number(), "text/plain"), Contains("dstrain_steps_total"));
  CHECK(std::chrono::steady_clock::now() - start < kPatience);
  silent.emplace_back(loop).connect({asio::ip::make_address("127.0.0.1"), port.number()});
  const auto end = std::chrono::steady_clock::now();
  server.reset();
  CHECK(std::chrono::steady_clock::now() - end < kPatience);
}

}  // namespace dstrain
