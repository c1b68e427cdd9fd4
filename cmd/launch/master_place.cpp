#include "cmd/launch/master_place.h"

#include <chrono>

#include <fmt/format.h>

#include "cmd/rank/rank_env.h"
#include "engine/base/network_address.h"

namespace dstrain {
namespace {

using launcher::Host;
using launcher::HostAnswer;
using launcher::HostFailure;
using launcher::HostQuestion;
using launcher::QuestionKind;

constexpr std::chrono::milliseconds kConnectPatience{5000};
constexpr const char* kOtherAddress = "give an --interface that every host has, or --master_addr";
constexpr const char* kOtherListen =
    "if --master_addr is translated on its way there, --listen ADDRESS names the address of its "
    "own "
    "on which rank 0's host listens; --listen all allows any";
constexpr const char* kOtherWay =
    "is there a firewall, or another network? --interface, --master_addr and --master_port choose "
    "another way";

/// The address from which the first host's packets to another one leave.
HostAnswer ask_for_route(Fleet& fleet, const std::vector<Host>& hosts) {
  if (hosts.size() == 1) return {.address = "127.0.0.1"};  // nobody else needs to reach it
  const std::string& other = hosts[1].name;
  HostAnswer answer =
      fleet.ask({hosts.front()}, {.kind = QuestionKind::kRoute, .address = fleet.address_of(other)})
          .front();
  if (answer.error.empty() && is_loopback(answer.address)) {
    answer.error = fmt::format("its way to {} begins at {}, which no other host can reach", other,
                               answer.address);
  }
  return answer;
}

/// Each host's address of the interface. False if one of them has none.
bool ask_for_interface(Fleet& fleet,
                       const std::vector<Host>& hosts,
                       const std::string& interface,
                       Master& place,
                       std::vector<HostFailure>& failures) {
  const std::vector<HostAnswer> answers =
      fleet.ask(hosts, {.kind = QuestionKind::kInterface, .path = interface});
  bool all_have_it = true;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    place.own_addresses[hosts[i].name] = answers[i].address;
    if (answers[i].error.empty()) continue;
    all_have_it = false;
    failures.push_back(
        {.host = hosts[i].name, .phase = "interface", .what = answers[i].error, .fix = ""});
  }
  return all_have_it;
}

/// Nobody but the job's own networks shall see the port, unless the user says so.
HostAnswer listen(Fleet& fleet, const Host& host, const Master& place) {
  const std::string& address = place.listen_address;
  return fleet
      .ask({host}, {.kind = QuestionKind::kListen,
                    .address = address == kListenOnAll ? "0.0.0.0" : address,
                    .port = place.port})
      .front();
}

}  // namespace

Master find_master(Fleet& fleet,
                   const std::vector<Host>& hosts,
                   const MasterWish& wish,
                   std::vector<HostFailure>& failures) {
  const std::vector<Host> machines = fleet.serving(hosts);
  const std::string& first = hosts.front().name;
  const auto fail = [&](const std::string& what, const std::string& fix) {
    failures.push_back({.host = first, .phase = "master", .what = what, .fix = fix});
  };
  Master place{.address = wish.address, .port = wish.port};
  if (!wish.interface.empty() &&
      !ask_for_interface(fleet, hosts, wish.interface, place, failures)) {
    return place;
  }
  if (place.address.empty() && !wish.interface.empty()) {
    place.address = place.own_addresses.at(first);
  } else if (place.address.empty()) {
    const HostAnswer answer = ask_for_route(fleet, machines);
    if (!answer.error.empty()) {
      fail(answer.error, kOtherAddress);
      return place;
    }
    place.address = answer.address;
  }
  // Nobody can be reached by a route that begins at the loopback: they are all on one machine.
  if (is_loopback(place.address)) {
    for (const Host& host : hosts)
      place.own_addresses[host.name] = place.address;
  }
  place.listen_address = wish.listen.empty() ? place.address : wish.listen;
  const HostAnswer listening = listen(fleet, hosts.front(), place);
  if (!listening.error.empty()) {
    fail(listening.error, wish.address.empty() || !wish.listen.empty() ? "" : kOtherListen);
    return place;
  }
  place.port = listening.port;
  const HostQuestion connect{.kind = QuestionKind::kConnect,
                             .address = place.address,
                             .port = place.port,
                             .timeout_ms = static_cast<std::uint32_t>(kConnectPatience.count())};
  const std::vector<HostAnswer> connected = fleet.ask(machines, connect);
  for (std::size_t i = 0; i < machines.size(); ++i) {
    if (connected[i].error.empty()) {
      place.way_ms[machines[i].name] = connected[i].microseconds / 1000.0;
    } else {
      failures.push_back({.host = machines[i].name,
                          .phase = "route",
                          .what = connected[i].error + ", where rank 0 will listen",
                          .fix = kOtherWay});
    }
  }
  return place;
}

}  // namespace dstrain
