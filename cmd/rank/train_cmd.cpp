// dstrain train: one rank. Where it stands among the others comes from its environment
// (rank_env.h).
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/launch/job_device.h"
#include "cmd/logging.h"
#include "cmd/rank/lifeline.h"
#include "cmd/rank/own_address.h"
#include "cmd/rank/rank_env.h"
#include "cmd/rank/rank_meeting.h"
#include "cmd/rank/rank_threads.h"
#include "cmd/rank/status_recorder.h"
#include "cmd/rank/stop_signal.h"
#include "cmd/run_flags.h"
#include "engine/base/usable_cores.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/solo_communicator.h"
#include "engine/comm/wait_clock.h"
#include "engine/train/run_data.h"
#include "engine/train/run_training.h"
#include "engine/train/wire_security.h"

namespace dstrain {
namespace {

/// The number of threads of this rank; rank 0 logs the notices.
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
  WaitClock waits(status.get(), env.world_size);
  std::optional<Lifeline> lifeline;
  if (env.has_lifeline) lifeline.emplace(stop);
  const DeviceChoice wish = wished_device(flags);
  RunFlags found = flags;
  found.machine = env.machine.value_or(assumed_facts(wish));
  // Errors in the config are reported, and JSON lines become samples, before this rank meets the
  // others, so that none of them waits for it.
  const DataConfig data = with_prepared_samples(load_and_resolve(found, env.world_size).config,
                                                [&] { return stop.number() != 0; });
  if (stop.number() != 0) return kExitSignalBase + stop.number();

  const std::chrono::milliseconds collective_timeout =
      env.collective_timeout_s > 0 ? std::chrono::seconds{env.collective_timeout_s}
                                   : ProcessOptions{}.timeout;
  const RankMeeting meeting = meet(env, wish);
  found.machine = meeting.place.machine;
  LoadedConfig config = load_and_resolve(found, env.world_size);
  config.config.data = data;
  std::unique_ptr<Rendezvous> rendezvous;
  if (env.world_size == 1) {
    rendezvous = make_solo_rendezvous();
  } else {
    const std::string own_address = reached_by(env);
    // NCCL listens as well while its ranks meet: on this interface alone, unless the user chose.
    if (const std::string name = interface_with(own_address); !name.empty()) {
      setenv("NCCL_SOCKET_IFNAME", ("=" + name).c_str(), 0);
    }
    const WireSecurity security = wire_security(config.config);
    if (security == WireSecurity::kTrusted && env.rank == 0) {
      spdlog::warn(
          "network.security=trusted: the ranks recognise each other when they connect, but what "
          "passes between hosts after that is not checked");
    }
    rendezvous = make_process_rendezvous(
        env.rank, env.world_size, *meeting.store,
        {.wire = {.interface_address = own_address, .secret = env.token, .security = security},
         .timeout = collective_timeout,
         .activity = &waits});
  }

  const Progress otherwise = isatty(STDERR_FILENO) == 1 ? Progress::kTerminal : Progress::kLines;
  const OwnerClaim claim{.job = env.job, .restart = env.restart, .take_over = flags.takes_over};
  const TrainResult result =
      run_training(config, *rendezvous,
                   {.threads = threads_of(env, config.config.training),
                    .gpu = meeting.place.gpu,
                    .gpu_name = meeting.place.gpu_name,
                    .ranks_on_gpu = meeting.place.ranks_on_gpu,
                    .store = meeting.store.get(),
                    .collective_timeout = collective_timeout,
                    .progress = env.rank == 0 ? env.progress.value_or(otherwise) : Progress::kNone,
                    .stop_signal = &stop.number(),
                    .activity = &waits,
                    .allow_tokenizer_mismatch = flags.allow_tokenizer_mismatch,
                    .owner = &claim,
                    .goal = flags.evaluates_sources ? RunGoal::kEvaluateSources
                            : flags.evaluates       ? RunGoal::kEvaluate
                                                    : RunGoal::kTrain,
                    .waits = &waits,
                    .metrics_at = flags.metrics_at});
  return result.stopped_by == 0 ? kExitSuccess : kExitSignalBase + result.stopped_by;
}

}  // namespace

void add_train_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* const command =
      app.add_subcommand("train",
                         "Run one rank; the environment says which one (srun, mpirun, torchrun; or "
                         "none: the only rank)");
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
