#include "cmd/launch/node_join.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <asio.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cmd/exit_codes.h"
#include "cmd/launch/job_secret.h"
#include "cmd/launch/own_agent.h"
#include "cmd/launch/wire_channel.h"
#include "engine/base/network_address.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/agent_dial.h"

namespace dstrain {
namespace {

using std::chrono::steady_clock;

/// Calls node 0 until it answers: nodes may be started in any order.
launcher::DialledLauncher find_leader(asio::io_context& loop, const NodeJoinOptions& options) {
  constexpr std::chrono::milliseconds kBetween{300};
  constexpr std::chrono::seconds kOneCall{5};
  const auto deadline = steady_clock::now() + options.patience;
  const std::string card = to_text(options.own);
  const std::string place = fmt::format("{} port {}", options.address, options.port);
  std::string why;
  while (true) {
    try {
      return launcher::dial_launcher(loop, places_of(options.address, options.port), card,
                                     hash_under(options.token), encrypted_channels(), kOneCall);
    } catch (const launcher::DialRefused& error) {
      throw RendezvousError(fmt::format("node 0 at {}: {}", place, error.what()));
    } catch (const std::runtime_error& error) {
      if (why.empty()) {
        spdlog::info("waiting for node 0 at {} for {} s", place, options.patience.count());
      }
      why = error.what();
    }
    if (steady_clock::now() + kBetween > deadline) {
      throw RendezvousError(fmt::format("node 0 at {} did not answer within {} s: {}", place,
                                        options.patience.count(), why));
    }
    std::this_thread::sleep_for(kBetween);
  }
}

/// Node 0 speaks first: when all nodes are there, or this one is sent away.
void await_first_word(int socket) {
  pollfd watched{.fd = socket, .events = POLLIN, .revents = 0};
  while (poll(&watched, 1, -1) < 0 && errno == EINTR) {
  }
}

int exit_code_of(const launcher::Agent& agent) {
  if (const auto& bye = agent.farewell()) {
    if (!bye->why.empty()) {
      spdlog::error("{}", bye->why);
    } else if (bye->exit_code != kExitSuccess) {
      const std::string meaning = describe_exit_code(bye->exit_code);
      spdlog::error("the run has ended with exit code {}{}; node 0 shows what happened",
                    bye->exit_code, meaning.empty() ? "" : ", " + meaning);
    } else {
      spdlog::info("the run has ended");
    }
    return bye->exit_code;
  }
  if (agent.ended_by() != 0) return kExitSignalBase + agent.ended_by();
  spdlog::error("node 0 is gone, and with it the run");
  return kExitPeerLost;
}

}  // namespace

std::vector<launcher::Place> places_of(const std::string& host, std::uint16_t port) {
  const AddressLookup found = look_up_addresses(host.c_str(), port);
  if (!found) throw std::runtime_error(fmt::format("{}: {}", host, found.error));
  std::vector<launcher::Place> places;
  for (const addrinfo* one = found.list.get(); one != nullptr; one = one->ai_next) {
    std::string address = address_text(one->ai_addr, one->ai_addrlen);
    if (!address.empty()) places.push_back({.address = std::move(address), .port = port});
  }
  return places;
}

int join_run(const NodeJoinOptions& options) {
  asio::io_context loop;
  launcher::DialledLauncher leader = find_leader(loop, options);
  spdlog::info("joined the run that node 0 leads at {} port {}; its output is shown there",
               options.address, options.port);
  const int handle = leader.socket.release();
  FileDescriptor in(handle);
  FileDescriptor out(dup(handle));
  await_first_word(handle);
  launcher::AgentOptions own = own_agent_options(address_of_socket(handle), options.token);
  own.seal = std::move(leader.seal);
  launcher::Agent agent(loop, std::move(in), std::move(out), std::move(own));
  agent.run();
  return exit_code_of(agent);
}

}  // namespace dstrain
