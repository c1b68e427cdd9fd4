// dstrain train: one rank. Where it stands among the others comes from its environment
// (rank_env.h).
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/lifeline.h"
#include "cmd/logging.h"
#include "cmd/own_address.h"
#include "cmd/rank_env.h"
#include "cmd/rank_threads.h"
#include "cmd/run_flags.h"
#include "cmd/status_recorder.h"
#include "cmd/stop_signal.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/tcp_store.h"
#include "engine/comm/wait_clock.h"
#include "engine/train/run_training.h"
#include "kernels/core/usable_cores.h"

namespace dstrain {
namespace {

constexpr std::chrono::seconds kMeetingDeadline{60};

/// Rank 0's store and this rank's way into it.
struct Meeting {
  std::unique_ptr<TcpStoreServer> server;
  std::unique_ptr<Store> store;
};

/// Waits for each rank's sign in turn; says who is missing.
void wait_for_everybody(Store& store,
                        const RankEnv& env,
                        std::chrono::steady_clock::time_point deadline) {
  std::vector<int> missing;
  for (int rank = 0; rank < env.world_size; ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    try {
      (void)store.get(fmt::format("arrived/{}", rank),
                      std::max(left, std::chrono::milliseconds{0}));
    } catch (const Timeout&) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    throw RendezvousError(fmt::format(
        "{} of {} ranks did not arrive at {}:{} within {} s: {}", missing.size(), env.world_size,
        env.master_address, env.master_port, kMeetingDeadline.count(), fmt::join(missing, ", ")));
  }
}

Meeting meet(const RankEnv& env) {
  const auto deadline = std::chrono::steady_clock::now() + kMeetingDeadline;
  Meeting meeting;
  try {
    if (env.rank == 0) {
      // On one host nobody else needs to reach it; elsewhere the launcher may know by which
      // address.
      const std::string address = env.cross_size == 1 ? env.master_address : env.listen_address;
      meeting.server = std::make_unique<TcpStoreServer>(address, env.master_port, env.token);
    }
    meeting.store =
        make_tcp_store(env.master_address, env.master_port, env.token, kMeetingDeadline);
    meeting.store->set(fmt::format("arrived/{}", env.rank), "1");
    if (env.rank == 0) {
      wait_for_everybody(*meeting.store, env, deadline);
      meeting.store->set("everybody-arrived", "1");
    } else {
      // Rank 0 gives up first and knows who is missing.
      constexpr std::chrono::seconds kAfterRankZero{5};
      (void)meeting.store->get("everybody-arrived", kMeetingDeadline + kAfterRankZero);
    }
  } catch (const Timeout& error) {
    throw RendezvousError(error.what());
  } catch (const StoreRefused& error) {
    throw RendezvousError(error.what());
  }
  return meeting;
}

/// Of this rank; rank 0 tells what is worth telling.
int threads_of(const RankEnv& env, const TrainingConfig& training) {
  const RankThreads threads =
      rank_threads(env, thread_wish(training, process_environment), usable_cores(),
                   static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  if (env.rank == 0) {
    for (const std::string& notice : threads.notices)
      spdlog::info("{}", notice);
    if (threads.warning) spdlog::warn("{}", *threads.warning);
  }
  return threads.number;
}

/// The address by which the other ranks reach this one.
std::string reached_by(const RankEnv& env) {
  if (!env.own_address.empty()) return env.own_address;
  return env.cross_size == 1 ? "127.0.0.1"
                             : own_address_towards(env.master_address, env.master_port);
}

int train(const RunFlags& flags) {
  const RankEnv env = from_env(process_environment);
  set_up_logging(env.world_size > 1 && !env.has_lifeline ? fmt::format("[{}] ", env.rank) : "");
  StopSignal stop;
  const std::unique_ptr<StatusRecorder> status = make_status_recorder(process_environment);
  WaitClock waits(status.get());
  std::optional<Lifeline> lifeline;
  if (env.has_lifeline) lifeline.emplace(stop);
  const LoadedConfig config = load_and_resolve(flags, env.world_size);

  const std::chrono::milliseconds collective_timeout =
      env.collective_timeout_s > 0 ? std::chrono::seconds{env.collective_timeout_s}
                                   : GlooOptions{}.timeout;
  Meeting meeting;
  std::unique_ptr<Rendezvous> rendezvous;
  if (env.world_size == 1) {
    rendezvous = std::move(make_local_rendezvous(1).front());
    meeting.store = make_memory_store();
  } else {
    meeting = meet(env);
    const std::string own_address = reached_by(env);
    const GlooOptions options{
        .interface_address = own_address, .timeout = collective_timeout, .activity = &waits};
    rendezvous = make_gloo_rendezvous(env.rank, env.world_size, *meeting.store, options);
  }

  const Progress otherwise = isatty(STDERR_FILENO) == 1 ? Progress::kTerminal : Progress::kLines;
  const TrainResult result =
      run_training(config, *rendezvous,
                   {.threads = threads_of(env, config.config.training),
                    .local_rank = env.local_rank,
                    .local_size = env.local_size,
                    .store = meeting.store.get(),
                    .collective_timeout = collective_timeout,
                    .progress = env.rank == 0 ? env.progress.value_or(otherwise) : Progress::kNone,
                    .stop_signal = &stop.number(),
                    .activity = &waits,
                    .allow_tokenizer_mismatch = flags.allow_tokenizer_mismatch,
                    .waits = &waits});
  return result.stopped_by == 0 ? kExitSuccess : kExitSignalBase + result.stopped_by;
}

}  // namespace

void add_train_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* const command = app.add_subcommand("train",
                                               "One rank of a run; the environment says which "
                                               "(srun, mpirun, torchrun, or none: the only one)");
  add_run_flags(*command, *flags);
  command->footer(
      "Examples:\n"
      "  dstrain train configs/quickstart.json\n"
      "  export MASTER_ADDR=… MASTER_PORT=… DSTRAIN_TOKEN=…\n"
      "  srun -n 4 dstrain train CONFIG\n"
      "  mpirun -n 4 -x MASTER_ADDR -x MASTER_PORT -x DSTRAIN_TOKEN \\\n"
      "    dstrain train CONFIG\n"
      "  DSTRAIN_TOKEN=… torchrun --nproc-per-node 4 --no-python dstrain train CONFIG");
  command->callback([flags, &chosen] { chosen = [flags] { return train(*flags); }; });
}

}  // namespace dstrain
