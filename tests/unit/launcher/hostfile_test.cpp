// The accepted and refused lines were tried on DeepSpeed 0.19's own parser.
#include "launcher/hosts/hostfile.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;

std::vector<Host> hosts_of(const std::string& text) {
  return parse_hostfile(text, "hosts").hosts;
}

/// "w0:0,1 w1:0"
std::string shown(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    if (!text.empty()) text += ' ';
    text += host.name;
    for (size_t i = 0; i < host.slots.size(); ++i) {
      text += i == 0 ? ':' : ',';
      text += std::to_string(host.slots[i]);
    }
  }
  return text;
}

struct Accepted {
  std::string text;
  std::string hosts;
  size_t warnings = 0;
};

TEST_CASE("the hostfile takes every line that DeepSpeed takes", "[launcher][hostfile]") {
  const auto [text, hosts, warnings] = GENERATE(values<Accepted>({
      {"w0 slots=2\n", "w0:0,1"},
      {"w0 slots=2", "w0:0,1"},
      {"w0\tslots=1\n", "w0:0"},
      {"   w0    slots=1   \n", "w0:0"},
      {"w0 slots=1\r\nw1 slots=1\r\n", "w0:0 w1:0"},
      {"w1 slots=1\nw0 slots=1\n", "w1:0 w0:0"},
      {"# all of them\n\n  # indented\nw0 slots=1\n", "w0:0"},
      {"\xef\xbb\xbfw0 slots=1\n", "w0:0"},
      {"user@h slots=2\n", "user@h:0,1"},
      {"w0:22 slots=1\n", "w0:22:0"},
      {"fe80::1 slots=1\n", "fe80::1:0"},
      {"w0 slots=007\n", "w0:0,1,2,3,4,5,6"},
      {"w0 slots=1 # fast\n", "w0:0"},
      {"w0 slots=0\nw1 slots=1\n", "w0 w1:0", 1},
      {"w0 slots=4x\n", "w0:0,1,2,3", 1},
      {"w0 slots=1 slots=2\n", "w0:0", 1},
      {"w0 slots=1 max_slots=8\n", "w0:0", 1},
  }));
  INFO(text);
  const Hostfile file = parse_hostfile(text, "hosts");
  CHECK(shown(file.hosts) == hosts);
  CHECK(file.warnings.size() == warnings);
}

TEST_CASE("the hostfile refuses what DeepSpeed refuses, with file and line",
          "[launcher][hostfile]") {
  const std::string line =
      GENERATE(as<std::string>(), "w1 slots=-1", "w1 slots = 4", "w1 SLOTS=4",
               "w1 max_slots=4 slots=2", "w1", "w1 4", "slots=4", "w1 slots=", "w1 slots=four",
               "w1,slots=4", "w1 slots=99999999999999999999");
  INFO(line);
  CHECK_THROWS_WITH(parse_hostfile("# comment\nw0 slots=1\n" + line + "\n", "hosts"),
                    Contains("hosts:3: ") && Contains(line) && Contains("HOST slots=N"));
}

TEST_CASE("a host that comes twice is refused, naming both lines", "[launcher][hostfile]") {
  CHECK_THROWS_WITH(parse_hostfile("w0 slots=1\nw1 slots=1\n\nw0 slots=2\n", "hosts"),
                    Contains("hosts:4: ") && Contains("already in line 1"));
}

TEST_CASE("a hostfile without hosts, or none at all, is refused", "[launcher][hostfile]") {
  CHECK_THROWS_WITH(parse_hostfile("", "hosts"), Contains("hosts: no hosts"));
  CHECK_THROWS_WITH(parse_hostfile("# only words\n\n", "hosts"), Contains("no hosts"));
  CHECK_THROWS_WITH(read_hostfile("/nowhere/hosts"), Contains("/nowhere/hosts"));
  CHECK_THROWS_WITH(read_hostfile("/tmp"), Contains("/tmp"));
}

TEST_CASE("the hostfiles that come with dstrain can be read", "[launcher][hostfile]") {
  CHECK(shown(read_hostfile("hostfiles/localhost").hosts) == "localhost:0,1");
  CHECK(read_hostfile("hostfiles/two-nodes.example").hosts.size() == 2);
}

struct Filtered {
  HostFilter filter;
  std::string hosts;
};

TEST_CASE("filters choose as DeepSpeed documents them", "[launcher][hostfile]") {
  const auto [filter, hosts] = GENERATE(values<Filtered>({
      {{}, "w0:0,1,2,3 w1:0,1,2,3"},
      {{.include = "w0"}, "w0:0,1,2,3"},  // DeepSpeed's code leaves nothing here
      {{.include = "w1@w0"}, "w0:0,1,2,3 w1:0,1,2,3"},
      {{.include = "w0:1"}, "w0:1"},
      {{.include = "w1:2,0,2"}, "w1:0,2"},
      {{.include = "w0:1@w0:0@w1:3"}, "w0:0,1 w1:3"},
      {{.include = "w0@w1:0"}, "w0:0,1,2,3 w1:0"},
      {{.exclude = "w0"}, "w1:0,1,2,3"},
      {{.exclude = "w1:0,2"}, "w0:0,1,2,3 w1:1,3"},
      {{.exclude = "w0:0,1,2,3"}, "w1:0,1,2,3"},
      {{.num_nodes = 1}, "w0:0,1,2,3"},
      {{.num_gpus = 2}, "w0:0,1 w1:0,1"},
      {{.num_nodes = 1, .num_gpus = 1}, "w0:0"},
  }));
  INFO("include=" << filter.include << " exclude=" << filter.exclude);
  CHECK(shown(filter_hosts(hosts_of("w0 slots=4\nw1 slots=4\n"), filter)) == hosts);
}

TEST_CASE("filters that contradict each other or name what is not there are refused",
          "[launcher][hostfile]") {
  const auto [filter, reason] = GENERATE(values<Filtered>({
      {{.include = "w0", .exclude = "w1"}, "cannot be given together"},
      {{.include = "w0", .num_nodes = 1}, "cannot be given together"},
      {{.exclude = "w0", .num_gpus = 1}, "cannot be given together"},
      {{.include = "w9"}, "there is no host \"w9\"; the hosts are w0, w1"},
      {{.include = "w0:4"}, "host w0 has no slot 4; it has slots 0 to 3"},
      {{.include = "w0:-1"}, "\"-1\" is not a slot number"},
      {{.include = "w0:a"}, "\"a\" is not a slot number"},
      {{.include = "w0:1.5"}, "\"1.5\" is not a slot number"},
      {{.include = "w0:"}, "\"\" is not a slot number"},
      {{.include = "w0:0,"}, "\"\" is not a slot number"},
      {{.include = "w0@"}, "there is no host \"\""},
      {{.exclude = "w0:7"}, "no slot 7"},
      {{.exclude = "w0@w1"}, "nothing would run"},
      {{.num_nodes = 3}, "there are only 2 hosts"},
      {{.num_nodes = 0}, "at least 1"},
      {{.num_gpus = 5}, "host w0 has slots=4"},
      {{.num_gpus = 0}, "--num_gpus 0"},
  }));
  INFO("include=" << filter.include << " exclude=" << filter.exclude);
  CHECK_THROWS_WITH(filter_hosts(hosts_of("w0 slots=4\nw1 slots=4\n"), filter), Contains(reason));
}

TEST_CASE("names with colons can be filtered", "[launcher][hostfile]") {
  const auto hosts = hosts_of("fe80::1 slots=2\nw0:22 slots=2\n");
  CHECK(shown(filter_hosts(hosts, {.include = "fe80::1"})) == "fe80::1:0,1");
  CHECK(shown(filter_hosts(hosts, {.include = "fe80::1:1@w0:22:0"})) == "fe80::1:1 w0:22:0");
}

TEST_CASE("hosts with slots=0 take no part", "[launcher][hostfile]") {
  CHECK(shown(filter_hosts(hosts_of("w0 slots=0\nw1 slots=1\n"), {})) == "w1:0");
  CHECK_THROWS_WITH(filter_hosts(hosts_of("w0 slots=0\n"), {}), Contains("no slots"));
}

TEST_CASE("without a hostfile a machine without GPUs has as many slots as are asked for",
          "[launcher][hostfile]") {
  const auto here = [](const HostFilter& filter) {
    return shown(hosts_without_hostfile(filter, {}));
  };
  CHECK(here({}) == "localhost:0");
  CHECK(here({.num_gpus = 3}) == "localhost:0,1,2");
  CHECK(here({.num_nodes = 1}) == "localhost:0");
  CHECK(here({.include = "localhost"}) == "localhost:0");
  CHECK(here({.include = "localhost:1"}) == "localhost:1");
  CHECK(here({.include = "localhost:3,0"}) == "localhost:0,3");
  CHECK_THROWS_WITH(here({.num_nodes = 2}), Contains("--hostfile"));
  CHECK_THROWS_WITH(here({.include = "w0:1"}), Contains("the hosts are localhost"));
  CHECK_THROWS_WITH(here({.exclude = "localhost:0"}), Contains("nothing would run"));
}

TEST_CASE("without a hostfile a machine's slots are its GPUs", "[launcher][hostfile]") {
  const auto here = [](const HostFilter& filter) {
    return shown(hosts_without_hostfile(filter, {0, 1, 3}));  // the third cannot be used
  };
  CHECK(here({}) == "localhost:0,1,3");
  CHECK(here({.num_gpus = 2}) == "localhost:0,1");
  CHECK(here({.num_gpus = 3}) == "localhost:0,1,3");
  CHECK(here({.include = "localhost:1"}) == "localhost:1");
  CHECK(here({.include = "localhost:3@localhost:0"}) == "localhost:0,3");
  CHECK(here({.exclude = "localhost:0"}) == "localhost:1,3");
  CHECK_THROWS_WITH(here({.num_gpus = 4}),
                    Contains("--num_gpus 4: this machine has 3 GPUs") && Contains("--share-gpus"));
  CHECK_THROWS_WITH(here({.include = "localhost:2"}), Contains("no slot 2; it has slots 0, 1, 3"));
  CHECK_THROWS_WITH(here({.exclude = "localhost:7"}), Contains("no slot 7"));
  CHECK(shown(hosts_without_hostfile({.num_gpus = 4}, {0}, true)) == "localhost:0,1,2,3");
}

TEST_CASE("hosts to reckon with need not exist", "[launcher][hostfile]") {
  CHECK(shown(imagined_hosts({})) == "node1:0");
  CHECK(shown(imagined_hosts({.num_nodes = 2, .num_gpus = 3})) == "node1:0,1,2 node2:0,1,2");
  CHECK(imagined_hosts({.num_nodes = 1 << 17, .num_gpus = 8}).size() == 1 << 17);
  CHECK_THROWS_WITH(imagined_hosts({.num_nodes = 1 << 17, .num_gpus = 9}),
                    Contains("--num_nodes 131072 × --num_gpus 9 is 1179648 ranks"));
  CHECK_THROWS_WITH(imagined_hosts({.num_nodes = 0}), Contains("--num_nodes 0"));
  CHECK_THROWS_WITH(imagined_hosts({.num_gpus = 0}), Contains("--num_gpus 0"));
}

}  // namespace
}  // namespace dstrain::launcher
