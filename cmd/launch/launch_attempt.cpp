#include "cmd/launch/launch_attempt.h"

#include <chrono>
#include <filesystem>
#include <string>

#include "cmd/exit_codes.h"
#include "cmd/launch/folder_claim.h"
#include "cmd/launch/launch_layout.h"
#include "cmd/logging.h"
#include "engine/checkpoint/durable_files.h"
#include "launcher/supervision/log_mux.h"

namespace dstrain {
namespace {

/// Makes <output_dir>/log, or what the user named instead.
std::string make_log_folder(const LaunchFlags& flags, const Config& config) {
  const std::filesystem::path folder =
      flags.log_folder.empty() ? std::filesystem::path(config.training.output_dir) / "log"
                               : std::filesystem::path(flags.log_folder);
  DurableFiles().make_folder(folder);
  return folder;
}

launcher::SupervisorOptions supervision(const LaunchFlags& flags) {
  launcher::SupervisorOptions options{.peer_lost_code = kExitPeerLost,
                                      .hang_code = kExitHang,
                                      .describe_exit_code = describe_exit_code};
  if (flags.step_timeout_seconds > 0) {
    options.hang_limits.step = std::chrono::seconds{flags.step_timeout_seconds};
  }
  if (flags.save_timeout_seconds > 0) {
    options.hang_limits.save = std::chrono::seconds{flags.save_timeout_seconds};
  }
  return options;
}

}  // namespace

launcher::JobOutcome run_attempt(const LaunchAttempt& attempt,
                                 const LaunchFlags& flags,
                                 const Config& config,
                                 HostAccess& access,
                                 std::unique_ptr<RunOwner>& claim) {
  const Master master = access.choose_master(attempt.hosts);
  const launcher::Job job =
      make_job(attempt.hosts, master, attempt.run, config.training, flags, access);
  if (!claim) claim = claim_folder(flags, config, attempt.run.job, attempt.restart);
  launcher::LogMux log(job, {.folder = make_log_folder(flags, config),
                             .restart = attempt.restart,
                             .error_prefix = kErrorPrefix});
  launcher::Supervisor supervisor(access.loop(), access.spawner_for(attempt.hosts), log,
                                  supervision(flags));
  return supervisor.run(job);
}

}  // namespace dstrain
