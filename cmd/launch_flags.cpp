#include "cmd/launch_flags.h"

#include <chrono>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

namespace dstrain {

namespace {

void add_environment_flags(CLI::App& command, launcher::EnvironmentFlags& flags) {
  command
      .add_option("--env", flags.assignments,
                  "Variable for all ranks: --env NAME=VALUE, or --env NAME with the value here; "
                  "repeatable. Without asking, ranks on this machine get all variables, those on "
                  "others NCCL*, UCX*, MV2*, GLOO_*, FI_*, OMP_*, KMP_*, MKL_*, DNNL_*, ONEDNN_*, "
                  "CUDA_*, DSTRAIN_*, WANDB_*, HF_*, MLFLOW*, PYTHON*")
      ->type_name("NAME[=VALUE]")
      ->allow_extra_args(false);
  command
      .add_option(
          "--env-file", flags.files,
          "Lines NAME=VALUE for all ranks; repeatable. Read before: .deepspeed_env, or what "
          "DS_ENV_FILE names, in the home and in this folder; --env wins over files")
      ->allow_extra_args(false);
}

void add_ssh_flags(CLI::App& command, FleetOptions& flags) {
  command.add_flag("--accept-new-host-keys", flags.accept_new_host_keys,
                   "Trust hosts that are met for the first time, and remember their keys; a key "
                   "that has changed is always refused");
  command.add_option("--ssh-port,--ssh_port", flags.ssh_port, "Of hosts that give no other")
      ->check(CLI::Range(1, 65535));
  command.add_option("--ssh-config", flags.ssh_config, "Instead of ~/.ssh/config and the system's");
  command
      .add_option_function<int>(
          "--connect-timeout",
          [&flags](int seconds) { flags.connect_timeout = std::chrono::seconds{seconds}; },
          "Seconds to log in to a host; default: 20")
      ->check(CLI::Range(1, 3600));
  command.add_option("--agent-path", flags.agent_path,
                     "Where dstrain is on the hosts; default: where it is here");
  command.add_flag("--copy-binary", flags.copy_binary,
                   "Send this dstrain to hosts that have none, or another build, into "
                   "~/.cache/dstrain");
}

}  // namespace

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  add_run_flags(command, flags.run);
  command.add_option("-H,--hostfile", flags.hostfile,
                     "Lines \"HOST slots=N\", one rank a slot; default: /job/hostfile where there "
                     "is one, else this machine with one rank, or --num_gpus of them");
  command.add_option("-i,--include", flags.filter.include,
                     "Only these: HOST[:SLOT,…][@HOST…]; a host without slots is all of them");
  command.add_option("-e,--exclude", flags.filter.exclude, "All but these; the same form");
  command.add_option("--num_nodes,--num-nodes", flags.filter.num_nodes, "The first N hosts");
  command.add_option("--num_gpus,--num-gpus,--num_accelerators", flags.filter.num_gpus,
                     "The first N slots of each host; without a hostfile: N ranks");
  command.add_option("--master_addr,--master-addr", flags.master_address,
                     "Address at which rank 0 serves the others; default: that from which packets "
                     "from its host to the others leave");
  command
      .add_option("--master_port,--master-port", flags.master_port,
                  "Port for that; default: one that is free")
      ->check(CLI::Range(1, 65535));
  command.add_option("--interface", flags.interface,
                     "Network interface that ranks use on every host; default: by route");
  add_environment_flags(command, flags.environment);
  command
      .add_option("--launcher", flags.fleet.launcher,
                  "What starts dstrain on the hosts: ssh, or slurm, inside an allocation, whose "
                  "hosts and tasks are the hostfile; default: ssh")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, HostLauncher>{{"ssh", HostLauncher::kSsh},
                                              {"slurm", HostLauncher::kSlurm}},
          CLI::ignore_case))
      ->default_str("ssh");
  add_ssh_flags(command, flags.fleet);
  command.add_flag("--check", flags.check,
                   "Check config and hostfile, plan every pipeline stage, print layout, step and "
                   "memory, check all hosts, print what they say, and stop");
  command.add_flag("--offline", flags.offline, "With --check: contact no host")->needs("--check");
  command.add_flag("--json", flags.json, "With --check: print as JSON, in bytes")->needs("--check");
  command.add_flag("--no-memory-check", flags.no_memory_check,
                   "Start the ranks even where the plan says that the memory is too small");
  command
      .add_option("--step-timeout", flags.step_timeout_seconds,
                  "The job hangs when no rank finishes a step for so many seconds; default: 5 × "
                  "the longest step so far, and at least 60")
      ->check(CLI::Range(1, 7 * 24 * 3600));
  command
      .add_option("--max-restarts", flags.max_restarts,
                  "After a failure start again from the newest checkpoint, so often; default: 0")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--max-restarts-without-progress", flags.max_restarts_without_progress,
                  "Give up (exit code 9) after so many restarts in a row that reached no newer "
                  "checkpoint; default: 3")
      ->check(CLI::PositiveNumber);
  command.add_flag("--restart-after-numerical-abort", flags.restart_after_numerical_abort,
                   "Restart also where loss or gradients are not finite (exit code 7)");
  command
      .add_option("--min-nodes,--min_nodes,--min_elastic_nodes", flags.min_nodes,
                  "A restart may do with so many hosts, when others failed twice or do not answer; "
                  "the global batch stays; default: all of them")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--max-nodes,--max_nodes,--max_elastic_nodes", flags.max_nodes,
                  "Use so many hosts at a time; the others stand by; default: all of them")
      ->check(CLI::PositiveNumber);
  command.add_flag("--print-config", flags.print_config,
                   "Print every value of the config with its origin, and stop");
  command.footer(
      "Examples:\n"
      "  dstrain launch --num_gpus 2 configs/quickstart.json\n"
      "  dstrain launch --hostfile hostfiles/localhost configs/quickstart.json --set "
      "training.steps=50\n"
      "  dstrain launch --hostfile hosts --exclude w3@w4:0 CONFIG --check\n"
      "  salloc --nodes 4 --ntasks-per-node 8 dstrain launch --launcher slurm CONFIG\n"
      "  dstrain launch --hostfile hostfiles/48-hosts.example --check --offline "
      "configs/llama-70b-tp8-pp8.json"
      "\n"
      "Ctrl-C once: the ranks finish their step, save and end. Twice: at once.\n"
      "Exit codes: 0 success, 2 usage or config, 3 hosts, 4 rendezvous, 5 checkpoint, 6 storage,\n"
      "7 numerical, 8 hang, 9 restarts without progress, 130/143 interrupted, 128+n a rank was "
      "killed by signal n, otherwise\n"
      "that of the rank that failed first.");
}

}  // namespace dstrain
