// Which hosts take part in the next attempt. Made-up hosts.
#include "launcher/hosts/host_pool.h"

#include <catch2/catch.hpp>

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Names = std::vector<std::string>;

std::vector<Host> hosts_of(int count) {
  std::vector<Host> hosts;
  for (int i = 0; i < count; ++i)
    hosts.push_back({.name = "w" + std::to_string(i), .slots = {0, 1}});
  return hosts;
}

struct Round {
  Names chosen;
  Names notices;
};

Round choose(
    HostPool& pool,
    const std::map<std::string, std::string>& silent = {},
    const std::function<bool(std::size_t)>& fits = [](std::size_t) { return true; }) {
  const HostPool::Choice choice =
      pool.choose([&](const std::vector<Host>&) { return silent; },
                  [&](const std::vector<Host>& hosts) { return fits(hosts.size()); });
  Round round{.chosen = {}, .notices = choice.notices};
  for (const Host& host : choice.hosts)
    round.chosen.push_back(host.name);
  return round;
}

TEST_CASE("without limits all hosts take part, whatever failed", "[launcher][hosts]") {
  HostPool pool(hosts_of(2), {});
  CHECK_FALSE(pool.is_elastic());
  for (int i = 0; i < 5; ++i)
    pool.add_failures({"w1"});
  CHECK(choose(pool).chosen == Names{"w0", "w1"});
}

TEST_CASE("a host that failed twice is left out, and said to be, once", "[launcher][hosts]") {
  HostPool pool(hosts_of(3), {.min_nodes = 2});
  pool.add_failures({"w1"});
  CHECK(choose(pool).chosen == Names{"w0", "w1", "w2"});
  pool.add_failures({"w1"});
  const Round round = choose(pool);
  CHECK(round.chosen == Names{"w0", "w2"});
  CHECK(round.notices == Names{"host w1 is left out: it failed 2 times"});
  CHECK(choose(pool).notices.empty());
  pool.add_failures({"w0"});
  pool.add_failures({"w0"});  // then two are not enough without them
  CHECK(choose(pool).chosen == Names{"w0", "w1", "w2"});
}

TEST_CASE("a host that does not answer is left out, and comes back when it does",
          "[launcher][hosts]") {
  HostPool pool(hosts_of(3), {.min_nodes = 1});
  const Round round = choose(pool, {{"w0", "no route"}});
  CHECK(round.chosen == Names{"w1", "w2"});
  CHECK(round.notices == Names{"host w0 is left out: it does not answer: no route"});
  CHECK(choose(pool).chosen == Names{"w0", "w1", "w2"});
}

TEST_CASE("hosts beyond the most stand by", "[launcher][hosts]") {
  HostPool pool(hosts_of(4), {.max_nodes = 2});
  CHECK(choose(pool).chosen == Names{"w0", "w1"});
  pool.add_failures({"w0", "w0"});
  CHECK(choose(pool).chosen == Names{"w1", "w2"});
}

TEST_CASE("as many hosts take part as the run can be divided over", "[launcher][hosts]") {
  HostPool pool(hosts_of(4), {.min_nodes = 1});
  const auto powers = [](std::size_t n) { return n == 1 || n == 2 || n == 4; };
  CHECK(choose(pool, {{"w3", "gone"}}, powers).chosen == Names{"w0", "w1"});
  HostPool strict(hosts_of(4), {.min_nodes = 3});
  CHECK_THROWS_WITH(choose(strict, {{"w3", "gone"}}, powers), Contains("cannot be divided over 3"));
}

TEST_CASE("too few hosts are an error that names the others", "[launcher][hosts]") {
  HostPool pool(hosts_of(2), {});
  CHECK_THROWS_WITH(choose(pool, {{"w1", "connection refused"}}),
                    "1 of 2 hosts are left, and at least 2 are needed: w1 does not answer: "
                    "connection refused");
  CHECK_THROWS_AS(HostPool(hosts_of(2), {.min_nodes = 3}), HostfileError);
  CHECK_THROWS_AS(HostPool(hosts_of(4), {.min_nodes = 3, .max_nodes = 2}), HostfileError);
}

}  // namespace
}  // namespace dstrain::launcher
