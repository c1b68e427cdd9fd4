// A trace of eight ranks on four hosts, two of which count time from another moment: by a time
// namespace, as machines do that were started at other times.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <unistd.h>

#include "engine/train/trace/trace_file.h"
#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing::FleetRun;

bool no_time_namespaces_here() {
  if (access("/proc/self/ns/time", F_OK) == 0 && access("/usr/bin/unshare", X_OK) == 0) {
    return false;
  }
  testing::skip("no time namespaces, or no unshare, here");
  return true;
}

/// One end of a message, in microseconds of rank 0's clock.
struct Ends {
  double sent = -1.0;
  double received = -1.0;
};

/// The messages of a trace, by their numbers; checks that each end is there once.
std::map<std::uint64_t, Ends> messages_in(const std::filesystem::path& folder) {
  std::map<std::uint64_t, Ends> messages;
  for (const int rank : read_trace_index(folder).ranks) {
    for (const std::string& line : read_rank_events(folder / rank_file_name(rank))) {
      const json event = json::parse(line);
      if (event.value("cat", "") != "message") continue;
      Ends& ends = messages[event["id"].get<std::uint64_t>()];
      double& end = event["ph"] == "s" ? ends.sent : ends.received;
      CHECK(end == -1.0);
      end = event["ts"].get<double>();
    }
  }
  return messages;
}

TEST_CASE("a trace puts all hosts on one clock: nothing arrives before it was sent",
          "[cluster][trace]") {
  if (testing::no_cluster_here() || no_time_namespaces_here()) return;
  FleetRun run(4, 2);
  constexpr const char* kAgent = "/mnt/home/dstrain";
  for (int i = 0; i < 4; ++i) {
    const std::string other_clock =
        i == 1 || i == 2
            ? fmt::format("/usr/bin/unshare --time --monotonic {} ", i == 1 ? 4'000'000 : 77)
            : std::string();
    run.host(i).write(kAgent, fmt::format("#!/bin/sh\nexec {}{} \"$@\"\n", other_clock,
                                          testing::dstrain_binary()));
    run.host(i).run(fmt::format("chmod 755 {}", kAgent));
  }
  const std::vector<std::string> cube = {"--agent-path", kAgent,
                                         "--set",        "gradient_accumulation_steps=4",
                                         "--set",        "pipeline.stages=4",
                                         "--set",        "model.num_hidden_layers=4",
                                         "--set",        "training.steps=24"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), cube.begin(), cube.end());
    return more;
  };
  const auto plain = run.launch(with({"--set", "training.output_dir=" + run.path("plain")}));
  const auto plain_code = plain->wait(seconds{120});
  INFO(plain->err());
  REQUIRE(plain_code == 0);
  const auto traced = run.launch(with({"--set", "training.output_dir=" + run.path("traced"),
                                       "--set", "training.trace.steps=\"6-9\""}));
  const auto traced_code = traced->wait(seconds{120});
  INFO(traced->err());
  REQUIRE(traced_code == 0);
  CHECK(testing::losses_in(run.tiny().read("traced/metrics.jsonl")) ==
        testing::losses_in(run.tiny().read("plain/metrics.jsonl")));

  const auto folder = trace_folder(run.path("traced"), {6, 9});
  const TraceIndex index = read_trace_index(folder);
  CHECK(index.ranks == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  const auto messages = messages_in(folder);
  // 4 steps of 4 micro-batches in 2 pipelines pass 3 edges, both ways.
  CHECK(messages.size() == 4U * 4 * 2 * 3 * 2);
  double least = 1e9;
  for (const auto& [id, ends] : messages) {
    CHECK(ends.sent >= 0.0);
    CHECK(ends.received >= ends.sent);
    least = std::min(least, ends.received - ends.sent);
  }
  std::printf("trace of 8 ranks on 4 hosts: %zu messages, the fastest took %.1f us\n",
              messages.size(), least);
}

}  // namespace
}  // namespace dstrain
