#include "cmd/rank/rank_meeting.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include "cmd/exit_codes.h"
#include "cmd/launch/facts_text.h"
#include "cmd/launch/host_machine.h"
#include "cmd/launch/job_device.h"
#include "cmd/launch/node_join.h"
#include "engine/base/network_address.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/socket.h"
#include "engine/config/config_error.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/job.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kMeetingDeadline{60};

/// This rank's place as it sees it. Which GPU it takes follows torchrun's convention: among those
/// that it sees, the one with the rank's number on the host; where it sees only one, somebody has
/// chosen for it.
RankSeat own_seat(const RankEnv& env, DeviceChoice wish) {
  const launcher::HostAnswer gpus =
      wish == DeviceChoice::kCpu ? launcher::HostAnswer{} : gpus_here();
  const bool sees_one = gpus.gpus.size() == 1;
  RankSeat seat = seats_of({launcher::own_hostname(), {sees_one ? 0 : env.local_rank}},
                           launcher::own_hostname(), gpus, processor_here(), env.may_share_gpus)
                      .front();
  if (seat.host_has_gpus && !seat.gpu) {
    seat.mend =
        "start as many ranks on each host as it has GPUs, or let them take turns with "
        "DSTRAIN_SHARE_GPUS=1";
  }
  return seat;
}

std::string to_text(const RankSeat& seat) {
  Json json = {{"host", seat.host},
               {"processor", seat.processor.model},
               {"multiplies_bf16", seat.processor.multiplies_bf16},
               {"memory", seat.processor.memory_bytes},
               {"host_has_gpus", seat.host_has_gpus},
               {"why_none", seat.why_none},
               {"mend", seat.mend}};
  if (seat.gpu) {
    json["gpu"] = {{"index", seat.gpu_index},
                   {"model", seat.gpu->model},
                   {"bytes", seat.gpu->total_bytes},
                   {"capability", seat.gpu->capability},
                   {"uuid", seat.gpu->uuid}};
  }
  return json.dump();
}

RankSeat parse_seat(const std::string& text) {
  const Json json = Json::parse(text);
  RankSeat seat{.host = json.at("host"),
                .machine = json.at("host"),
                .processor = {.model = json.at("processor"),
                              .multiplies_bf16 = json.at("multiplies_bf16"),
                              .memory_bytes = json.at("memory")},
                .host_has_gpus = json.at("host_has_gpus"),
                .why_none = json.at("why_none"),
                .mend = json.at("mend")};
  if (const auto gpu = json.find("gpu"); gpu != json.end()) {
    seat.gpu_index = gpu->at("index");
    seat.gpu = launcher::GpuReport{.model = gpu->at("model"),
                                   .total_bytes = gpu->at("bytes"),
                                   .capability = gpu->at("capability"),
                                   .uuid = gpu->at("uuid")};
  }
  return seat;
}

/// Rank 0's message to all: the facts, how many ranks share the GPU that most share, and why the
/// run is impossible, where it is.
struct Verdict {
  MachineFacts machine;
  int ranks_on_gpu = 1;
  std::string objection{};
};

Verdict judge(DeviceChoice wish, const std::vector<RankSeat>& seats, bool may_share) {
  const JobDevice device = decide_device(wish, seats, may_share);
  Verdict verdict{.machine = device.facts};
  for (const int ranks : ranks_on_gpus(seats))
    verdict.ranks_on_gpu = std::max(verdict.ranks_on_gpu, ranks);
  if (device.failures.empty()) {
    spdlog::info("{}", device.line);
    return verdict;
  }
  const launcher::HostFailure& first = device.failures.front();
  verdict.objection = fmt::format("host {}: {}: {}", first.host, first.what, first.fix);
  if (device.failures.size() > 1) {
    verdict.objection += fmt::format(" (and {} more like it)", device.failures.size() - 1);
  }
  return verdict;
}

std::string to_text(const Verdict& verdict) {
  return Json({{"machine", to_text(verdict.machine)},
               {"ranks_on_gpu", verdict.ranks_on_gpu},
               {"objection", verdict.objection}})
      .dump();
}

Verdict parse_verdict(const std::string& text) {
  const Json json = Json::parse(text);
  return {.machine = parse_facts(json.at("machine").get<std::string>()),
          .ranks_on_gpu = json.at("ranks_on_gpu"),
          .objection = json.at("objection")};
}

/// Waits for each rank's sign in turn, and throws with the ranks that are missing. Returns the
/// ranks' messages, in their order.
std::vector<std::string> wait_for_everybody(Store& store,
                                            const RankEnv& env,
                                            std::chrono::steady_clock::time_point deadline) {
  std::vector<int> missing;
  std::vector<std::string> signs;
  for (int rank = 0; rank < env.world_size; ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    try {
      signs.push_back(
          store.get(fmt::format("arrived/{}", rank), std::max(left, std::chrono::milliseconds{0})));
    } catch (const Timeout&) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    throw RendezvousError(fmt::format(
        "{} of {} ranks did not arrive at {}:{} within {} s: {}", missing.size(), env.world_size,
        env.master_address, env.master_port, kMeetingDeadline.count(), fmt::join(missing, ", ")));
  }
  return signs;
}

std::string heard_key(int rank) {
  return fmt::format("heard/{}", rank);
}

/// The verdict may end rank 0, and the store with it, which must not happen before the others know
/// why.
void wait_until_heard(Store& store, int world_size) {
  constexpr std::chrono::seconds kPatience{5};  // one that has died meanwhile needs no reason
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (int rank = 1; rank < world_size; ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    try {
      (void)store.get(heard_key(rank), std::max(left, std::chrono::milliseconds{0}));
    } catch (const Timeout&) {
      return;
    }
  }
}

/// Rank 0 collects the signs, decides and publishes; the others read. `sign` is this rank's.
Verdict agree(Store& store,
              const RankEnv& env,
              DeviceChoice wish,
              const std::string& sign,
              std::chrono::steady_clock::time_point deadline) {
  store.set(fmt::format("arrived/{}", env.rank), sign);
  if (env.rank != 0) {
    // Rank 0 gives up first and knows who is missing.
    constexpr std::chrono::seconds kAfterRankZero{5};
    Verdict verdict =
        parse_verdict(store.get("everybody-arrived", kMeetingDeadline + kAfterRankZero));
    if (!verdict.objection.empty()) store.set(heard_key(env.rank), "1");
    return verdict;
  }
  const std::vector<std::string> signs = wait_for_everybody(store, env, deadline);
  Verdict verdict{.machine = env.machine.value_or(MachineFacts{})};
  if (!env.machine) {
    std::vector<RankSeat> seats;
    for (const std::string& said : signs)
      seats.push_back(parse_seat(said));
    verdict = judge(wish, seats, env.may_share_gpus);
  }
  store.set("everybody-arrived", to_text(verdict));
  if (!verdict.objection.empty()) wait_until_heard(store, env.world_size);
  return verdict;
}

RankPlace place_by_launcher(const RankEnv& env) {
  return {.machine = *env.machine,
          .gpu_name = env.gpu >= 0 ? fmt::format("cuda:{}", env.gpu) : "",
          .ranks_on_gpu = env.ranks_on_gpu};
}

/// The address that rank 0's store listens on; empty: all of them, which only the user can ask for.
/// On one host, no other machine needs to reach it.
std::string listening_address(const RankEnv& env) {
  if (env.listen_address == kListenOnAll) {
    spdlog::warn("rank 0 listens on all interfaces, as DSTRAIN_LISTEN_ADDRESS=all says");
    return "";
  }
  if (!env.listen_address.empty()) return env.listen_address;
  if (env.cross_size == 1) return env.master_address;
  std::vector<launcher::Place> places;
  try {
    places = places_of(env.master_address, env.master_port);
  } catch (const std::runtime_error& error) {
    throw RendezvousError(fmt::format("MASTER_ADDR {}", error.what()));
  }
  for (const launcher::Place& place : places) {
    if (!is_loopback(place.address) && launcher::is_this_machine(place.address))
      return place.address;
  }
  throw RendezvousError(fmt::format(
      "MASTER_ADDR {} is not an address of this host that others can reach, and rank 0 is here: "
      "give "
      "one that is, or, where it is translated on the way, DSTRAIN_LISTEN_ADDRESS={} or =all",
      env.master_address,
      launcher::own_addresses().empty() ? "ADDRESS" : launcher::own_addresses().front()));
}

/// The socket that the launcher listened on for this rank, so that nobody could take its port
/// before it was here; not valid where there is none.
FileDescriptor inherited_listener(const RankEnv& env) {
  const std::optional<std::string> text = process_environment(launcher::kListenerVariable);
  if (!text) return {};
  int number = -1;
  std::from_chars(text->data(), text->data() + text->size(), number);
  FileDescriptor listener(number);
  int listens = 0;
  socklen_t size = sizeof listens;
  if (!listener || getsockopt(listener.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 ||
      listens == 0 || (env.world_size > 1 && port_of(listener) != env.master_port)) {
    throw RendezvousError(
        fmt::format("{}={} in the environment is not a socket that listens on port {}; unset it "
                    "unless a launcher "
                    "of this build set it",
                    launcher::kListenerVariable, *text, env.master_port));
  }
  fcntl(listener.get(), F_SETFD, FD_CLOEXEC);
  fcntl(listener.get(), F_SETFL, fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
  return listener;
}

/// Throws ConfigError where the verdict is that the run is impossible; rank 0 alone gives the
/// reason.
RankPlace place_by_verdict(const RankSeat& seat, const Verdict& verdict, int rank) {
  if (!verdict.objection.empty()) {
    throw ConfigError(rank == 0 ? verdict.objection
                                : "the devices of the ranks do not fit together: see rank 0");
  }
  return {.machine = verdict.machine,
          .gpu = std::max(0, seat.gpu_index),
          .ranks_on_gpu = verdict.ranks_on_gpu};
}

}  // namespace

RankMeeting meet(const RankEnv& env, DeviceChoice wish) {
  const auto deadline = std::chrono::steady_clock::now() + kMeetingDeadline;
  RankSeat seat;
  if (!env.machine) seat = own_seat(env, wish);
  RankMeeting meeting;
  FileDescriptor listener = inherited_listener(env);
  if (env.world_size == 1) {
    meeting.store = make_memory_store();
    meeting.place = env.machine ? place_by_launcher(env)
                                : place_by_verdict(seat, judge(wish, {seat}, false), 0);
    return meeting;
  }
  Verdict verdict;
  std::string store_address = env.master_address;
  try {
    if (env.rank == 0) {
      const std::string address = listening_address(env);
      meeting.server = listener
                           ? std::make_unique<TcpStoreServer>(std::move(listener), env.token)
                           : std::make_unique<TcpStoreServer>(address, env.master_port, env.token);
      if (!address.empty()) store_address = address;  // whatever leads here from elsewhere
    }
    meeting.store = make_tcp_store(store_address, env.master_port, env.token, kMeetingDeadline);
    verdict = agree(*meeting.store, env, wish, env.machine ? "1" : to_text(seat), deadline);
  } catch (const Timeout& error) {
    throw RendezvousError(error.what());
  } catch (const StoreRefused& error) {
    throw RendezvousError(error.what());
  }
  meeting.place = env.machine ? place_by_launcher(env) : place_by_verdict(seat, verdict, env.rank);
  return meeting;
}

}  // namespace dstrain
