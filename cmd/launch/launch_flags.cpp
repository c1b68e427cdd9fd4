#include "cmd/launch/launch_flags.h"

#include <chrono>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

namespace dstrain {

namespace {

void add_host_flags(CLI::App& command, LaunchFlags& flags) {
  command.option_defaults()->group("Hosts");
  command
      .add_option("-H,--hostfile", flags.hostfile,
                  "File with lines \"HOST slots=N\", one rank per slot; default: "
                  "/job/hostfile if it exists, else this machine with a rank on each of its "
                  "GPUs, or one on its CPUs")
      ->type_name("FILE");
  command
      .add_option("-i,--include", flags.filter.include,
                  "Use only these hosts and slots; a host named without slots counts with all "
                  "of them. Slot s is GPU s of those that CUDA_VISIBLE_DEVICES shows on the "
                  "host. Without a hostfile, the host is localhost")
      ->type_name("HOST[:SLOT,…][@HOST…]");
  command
      .add_option("-e,--exclude", flags.filter.exclude,
                  "Use all hosts and slots except these; same syntax as --include")
      ->type_name("HOST[:SLOT,…][@HOST…]");
  command.add_option("--num_nodes", flags.filter.num_nodes,
                     "Use the first N hosts of the hostfile");
  command.add_option("--num_gpus,--num_accelerators", flags.filter.num_gpus,
                     "Use the first N slots of each host; without a hostfile, N GPUs of this "
                     "machine, or N ranks on its CPUs");
  command
      .add_flag("--share-gpus", flags.share_gpus,
                "Let ranks take turns on a GPU if there are more ranks than GPUs, which is "
                "an error otherwise; also DSTRAIN_SHARE_GPUS=1")
      ->envname("DSTRAIN_SHARE_GPUS");
  command
      .add_option("--master_addr", flags.master_address,
                  "Address at which rank 0 serves the other ranks; default: the one from "
                  "which packets to the other hosts leave its host")
      ->type_name("ADDRESS");
  command
      .add_option("--master_port", flags.master_port,
                  "Port for --master_addr; default: any free port")
      ->check(CLI::Range(1, 65535));
  command
      .add_option("--interface", flags.interface,
                  "Network interface that ranks use on every host; default: the one that the "
                  "route picks")
      ->type_name("NAME");
  command
      .add_option("--listen", flags.listen,
                  "Address on which rank 0's host, or node 0, listens if --master_addr is not "
                  "one of its own, as behind NAT or in a container: one of its own addresses, "
                  "or all; default: --master_addr only")
      ->type_name("ADDRESS|all");
}

void add_by_hand_flags(CLI::App& command, ByHandFlags& flags) {
  command.option_defaults()->group("Started by hand on every node, without SSH");
  command
      .add_option("--node_rank", flags.node_rank,
                  "Number of this node, from 0. Run the same command on every node, with "
                  "--num_nodes or a hostfile, and with --master_addr and --master_port of "
                  "node 0, which leads the run and shows the output of all ranks; default "
                  "port: 29500")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--token-file", flags.token_file,
                  "File, readable only by you, with a secret that all nodes share; default: "
                  "the secret in DSTRAIN_TOKEN")
      ->type_name("FILE");
  command.add_flag("--no_ssh", flags.no_ssh,
                   "DeepSpeed's name for nodes that are started by hand; needs --node_rank");
  command
      .add_option("--rdzv_id", flags.job_id,
                  "Name of the run; nodes that were given another name are refused")
      ->type_name("NAME");
}

void add_access_flags(CLI::App& command, FleetOptions& flags) {
  command.option_defaults()->group("How hosts are reached");
  command
      .add_option("--launcher", flags.launcher,
                  "How dstrain is started on the hosts. ssh: dstrain logs in itself, and uses "
                  "OpenSSH's client where it cannot (jump hosts, certificates, Kerberos, "
                  "security keys, RSA keys); libssh2: dstrain's own login only; openssh: "
                  "OpenSSH's client only, with everything that ~/.ssh/config says; pdsh: the "
                  "same as ssh; slurm: within an allocation, whose hosts and tasks take the "
                  "place of the hostfile; default: ssh")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, HostLauncher>{{"ssh", HostLauncher::kSsh},
                                              {"libssh2", HostLauncher::kLibssh2},
                                              {"openssh", HostLauncher::kOpenssh},
                                              {"pdsh", HostLauncher::kSsh},
                                              {"slurm", HostLauncher::kSlurm}},
          CLI::ignore_case));
  command.add_flag("--accept-new-host-keys", flags.accept_new_host_keys,
                   "Trust hosts that are seen for the first time, and remember their keys; a "
                   "changed key is always refused");
  command
      .add_option("--ssh-port", flags.ssh_port,
                  "SSH port for hosts whose hostfile line and SSH configuration give none")
      ->check(CLI::Range(1, 65535));
  command
      .add_option("--ssh-config", flags.ssh_config,
                  "Read this SSH configuration instead of ~/.ssh/config and the system's")
      ->type_name("FILE");
  command
      .add_option_function<int>(
          "--connect-timeout",
          [&flags](int seconds) {
            flags.connect_timeout = std::chrono::seconds{seconds};
            flags.has_connect_timeout = true;
          },
          "Seconds that logging in to a host may take, 20 by default; also the "
          "seconds that nodes started by hand wait for each other, 300 by default")
      ->check(CLI::Range(1, 3600));
  command
      .add_option("--agent-path", flags.agent_path,
                  "Path of dstrain on the hosts; default: its path here")
      ->type_name("PATH");
  command.add_flag("--copy-binary", flags.copy_binary,
                   "Copy this dstrain into ~/.cache/dstrain of hosts that have none, or "
                   "another build");
}

void add_environment_flags(CLI::App& command, launcher::EnvironmentFlags& flags) {
  command.option_defaults()->group("Environment of the ranks");
  command
      .add_option("--env", flags.assignments,
                  "Variable to pass to all ranks, with its value here unless one is given; "
                  "repeatable. By default, ranks on this machine get all variables, and ranks "
                  "on others NCCL*, UCX*, MV2*, FI_*, OMP_*, KMP_*, MKL_*, DNNL_*, ONEDNN_*, "
                  "CUDA_*, DSTRAIN_*, WANDB_*, HF_*, MLFLOW*, PYTHON*")
      ->type_name("NAME[=VALUE]")
      ->allow_extra_args(false);
  command
      .add_option("--env-file", flags.files,
                  "File with lines NAME=VALUE for all ranks; repeatable. .deepspeed_env, or "
                  "the file that DS_ENV_FILE names, is read first, from the home folder and "
                  "from this one; --env overrides files")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

void add_check_flags(CLI::App& command, LaunchFlags& flags) {
  command.option_defaults()->group("Looking before training");
  command.add_flag("--check", flags.check,
                   "Check config and hostfile, plan every pipeline stage, print layout, step "
                   "and memory, query all hosts and print their answers, then stop");
  command.add_flag("--offline", flags.offline, "With --check: contact no host")->needs("--check");
  command.add_flag("--json", flags.json, "With --check: print as JSON, in bytes")->needs("--check");
  command.add_flag("--print-config", flags.print_config,
                   "Print every value of the config with its origin, then stop");
  command
      .add_option("--write-fixed", flags.write_fixed,
                  "Write a corrected copy of the config, which is accepted, to this new file, "
                  "with a comment beside each change, then stop; values of --set go into it")
      ->type_name("FILE");
  command.add_flag("--no-memory-check", flags.no_memory_check,
                   "Start the ranks even if the plan says that memory will not suffice");
}

void add_supervision_flags(CLI::App& command, LaunchFlags& flags) {
  command.option_defaults()->group("Failures and restarts");
  command
      .add_option("--step-timeout", flags.step_timeout_seconds,
                  "Seconds without a finished step after which the job counts as hung; "
                  "default: 5 times the longest step so far, and at least 60")
      ->check(CLI::Range(1, 7 * 24 * 3600));
  command
      .add_option("--save-timeout", flags.save_timeout_seconds,
                  "Seconds after which a job that is only saving a checkpoint, or ending, "
                  "counts as hung; default: 5 times the longest save so far, and at least "
                  "1800")
      ->check(CLI::Range(1, 7 * 24 * 3600));
  command
      .add_option("--max-restarts", flags.max_restarts,
                  "Number of times to start again from the newest checkpoint after a failure; "
                  "default: 0")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--max-restarts-without-progress", flags.max_restarts_without_progress,
                  "Give up (exit code 9) after N restarts in a row that reached no newer "
                  "checkpoint; default: 3")
      ->check(CLI::PositiveNumber);
  command.add_flag("--restart-after-numerical-abort", flags.restart_after_numerical_abort,
                   "Restart also if loss or gradients are not finite (exit code 7)");
  command
      .add_option("--min-nodes,--min_elastic_nodes", flags.min_nodes,
                  "Let a restart go on with at least N hosts if others failed twice or do not "
                  "answer; the global batch stays the same; default: all hosts")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--max-nodes,--max_elastic_nodes", flags.max_nodes,
                  "Use at most N hosts at a time, and keep the others on standby; default: "
                  "all hosts")
      ->check(CLI::PositiveNumber);
}

void add_log_flags(CLI::App& command, LaunchFlags& flags) {
  command.option_defaults()->group("Output");
  command
      .add_option("--log-dir,--enable_each_rank_log", flags.log_folder,
                  "Folder for the output of each rank, rank-NNNNN.log; default: log in "
                  "training.output_dir")
      ->type_name("DIR");
  command
      .add_option("--log_level", flags.log_level, "Log level of the launcher itself; default: info")
      ->type_name("debug|info|warning|error");
  command.add_flag("-q,--quiet", flags.quiet, "Same as --log_level error");
}

}  // namespace

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  add_run_flags(command, flags.run);
  add_host_flags(command, flags);
  add_by_hand_flags(command, flags.by_hand);
  add_access_flags(command, flags.fleet);
  add_environment_flags(command, flags.environment);
  add_check_flags(command, flags);
  add_supervision_flags(command, flags);
  add_log_flags(command, flags);
  add_peer_launcher_flags(command, flags.peer);
  command.footer(
      "Examples:\n"
      "  dstrain launch --num_gpus 2 configs/quickstart.json\n"
      "  dstrain launch --include localhost:1 CONFIG       on its second GPU\n"
      "  dstrain launch -H hostfiles/localhost configs/quickstart.json \\\n"
      "    --set training.steps=50\n"
      "  dstrain launch -H hosts --exclude w3@w4:0 CONFIG --check\n"
      "  dstrain launch --node_rank 1 --num_nodes 2 --master_addr node0 \\\n"
      "    --token-file token CONFIG          # on node 1; --node_rank 0 on node 0\n"
      "  salloc --nodes 4 --ntasks-per-node 8 dstrain launch --launcher slurm CONFIG\n"
      "  dstrain launch -H hostfiles/48-hosts.example --check --offline \\\n"
      "    configs/llama-70b-tp8-pp8.json\n"
      "  dstrain launch CONFIG --write-fixed fixed.json\n"
      "Other flags of torchrun and DeepSpeed are known: when one is given, a line says why\n"
      "it has no effect, or how the same is done here.\n"
      "Ctrl-C lets the ranks finish their step, save and end; a second one ends them at once.\n"
      "Exit codes: 0 success, 2 usage or config, 3 hosts, 4 rendezvous, 5 checkpoint,\n"
      "6 storage, 7 numerical, 8 hang, 9 restarts without progress, 10 memory changed\n"
      "by itself, 130 and 143 interrupted, 128+n a rank was killed by signal n, otherwise that of "
      "the rank\n"
      "that failed first.");
}

}  // namespace dstrain
