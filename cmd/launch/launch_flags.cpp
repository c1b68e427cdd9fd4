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
                  "Lines \"HOST slots=N\", one rank a slot; default: /job/hostfile where there is "
                  "one, else this machine with a rank on each of its GPUs, or one on its CPUs")
      ->type_name("FILE");
  command
      .add_option(
          "-i,--include", flags.filter.include,
          "Only these hosts and slots; a host without slots means all of its slots. Slot s is "
          "GPU s of those that CUDA_VISIBLE_DEVICES shows on the host. Without a hostfile "
          "the host is localhost")
      ->type_name("HOST[:SLOT,…][@HOST…]");
  command
      .add_option("-e,--exclude", flags.filter.exclude,
                  "All hosts and slots but these; written as for --include")
      ->type_name("HOST[:SLOT,…][@HOST…]");
  command.add_option("--num_nodes", flags.filter.num_nodes, "The first N hosts of the hostfile");
  command.add_option(
      "--num_gpus,--num_accelerators", flags.filter.num_gpus,
      "The first N slots of each host; without a hostfile: N GPUs of this machine, or "
      "N ranks on its CPUs");
  command
      .add_flag("--share-gpus", flags.share_gpus,
                "Let ranks take turns where they are more than the GPUs, which is an error "
                "otherwise; also DSTRAIN_SHARE_GPUS=1")
      ->envname("DSTRAIN_SHARE_GPUS");
  command
      .add_option("--master_addr", flags.master_address,
                  "Address at which rank 0 serves the others; default: the one from which packets "
                  "leave its host for the others")
      ->type_name("ADDRESS");
  command
      .add_option("--master_port", flags.master_port,
                  "Port for --master_addr; default: one that is free")
      ->check(CLI::Range(1, 65535));
  command
      .add_option("--interface", flags.interface,
                  "Network interface that ranks use on every host; default: by route")
      ->type_name("NAME");
  command
      .add_option("--listen", flags.listen,
                  "Where rank 0's host, or node 0, listens if --master_addr is none of its own "
                  "addresses, as behind NAT or in a container: one that is, or all; default: on "
                  "--master_addr alone")
      ->type_name("ADDRESS|all");
}

void add_by_hand_flags(CLI::App& command, ByHandFlags& flags) {
  command.option_defaults()->group("Started by hand on every node, without SSH");
  command
      .add_option("--node_rank", flags.node_rank,
                  "Which of the nodes this is, from 0: the same command runs on each of them, with "
                  "--num_nodes or a hostfile, and --master_addr and --master_port of node 0, which "
                  "leads and shows what all ranks say; port 29500 unless given")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--token-file", flags.token_file,
                  "A file that only you can read, with a secret that all nodes share; default: the "
                  "secret is DSTRAIN_TOKEN")
      ->type_name("FILE");
  command.add_flag("--no_ssh", flags.no_ssh, "As DeepSpeed has it: asks for --node_rank");
  command
      .add_option("--rdzv_id", flags.job_id,
                  "A name for the run: nodes that were given another are refused")
      ->type_name("NAME");
}

void add_access_flags(CLI::App& command, FleetOptions& flags) {
  command.option_defaults()->group("How hosts are reached");
  command
      .add_option(
          "--launcher", flags.launcher,
          "What starts dstrain on the hosts. ssh: this program logs in by itself, and uses "
          "OpenSSH's client where it cannot (a jump host, a certificate, Kerberos, a "
          "security key, an RSA key); libssh2: only itself; openssh: only OpenSSH's client, "
          "with all that ~/.ssh/config says; pdsh: as ssh; slurm: inside an allocation, whose "
          "hosts and "
          "tasks stand for the hostfile; default: ssh")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, HostLauncher>{{"ssh", HostLauncher::kSsh},
                                              {"libssh2", HostLauncher::kLibssh2},
                                              {"openssh", HostLauncher::kOpenssh},
                                              {"pdsh", HostLauncher::kSsh},
                                              {"slurm", HostLauncher::kSlurm}},
          CLI::ignore_case));
  command.add_flag("--accept-new-host-keys", flags.accept_new_host_keys,
                   "Trust hosts that are met for the first time, and remember their keys; a key "
                   "that has changed is always refused");
  command
      .add_option("--ssh-port", flags.ssh_port,
                  "Port for hosts that neither the hostfile nor the SSH configuration gives one")
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
          "Seconds that logging in to a host may take, by default 20; nodes that are started by "
          "hand wait for each other for so long, by default 300")
      ->check(CLI::Range(1, 3600));
  command
      .add_option("--agent-path", flags.agent_path,
                  "Where dstrain is on the hosts; default: where it is here")
      ->type_name("PATH");
  command.add_flag("--copy-binary", flags.copy_binary,
                   "Send this dstrain to hosts that have none, or another build, into "
                   "~/.cache/dstrain");
}

void add_environment_flags(CLI::App& command, launcher::EnvironmentFlags& flags) {
  command.option_defaults()->group("Environment of the ranks");
  command
      .add_option("--env", flags.assignments,
                  "A variable for all ranks, with its value here unless one is given; repeatable. "
                  "Without asking, ranks on this machine get all variables, those on others NCCL*, "
                  "UCX*, MV2*, FI_*, OMP_*, KMP_*, MKL_*, DNNL_*, ONEDNN_*, CUDA_*, "
                  "DSTRAIN_*, WANDB_*, HF_*, MLFLOW*, PYTHON*")
      ->type_name("NAME[=VALUE]")
      ->allow_extra_args(false);
  command
      .add_option("--env-file", flags.files,
                  "A file of lines NAME=VALUE for all ranks; repeatable. .deepspeed_env, or what "
                  "DS_ENV_FILE names, is read before it from the home folder and from this one; "
                  "--env wins over files")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

void add_check_flags(CLI::App& command, LaunchFlags& flags) {
  command.option_defaults()->group("Looking before training");
  command.add_flag("--check", flags.check,
                   "Check config and hostfile, plan every pipeline stage, print layout, step and "
                   "memory, ask all hosts, print what they say, and stop");
  command.add_flag("--offline", flags.offline, "With --check: contact no host")->needs("--check");
  command.add_flag("--json", flags.json, "With --check: print as JSON, in bytes")->needs("--check");
  command.add_flag("--print-config", flags.print_config,
                   "Print every value of the config with its origin, and stop");
  command
      .add_option("--write-fixed", flags.write_fixed,
                  "Write to this new file a copy of the config that is accepted, with a comment "
                  "beside each change, and stop; --set goes into it")
      ->type_name("FILE");
  command.add_flag("--no-memory-check", flags.no_memory_check,
                   "Start the ranks even where the plan says that memory will not suffice");
}

void add_supervision_flags(CLI::App& command, LaunchFlags& flags) {
  command.option_defaults()->group("Failures and restarts");
  command
      .add_option("--step-timeout", flags.step_timeout_seconds,
                  "Seconds without a finished step after which the job counts as hanging; default: "
                  "5 times the longest step so far, and at least 60")
      ->check(CLI::Range(1, 7 * 24 * 3600));
  command
      .add_option("--save-timeout", flags.save_timeout_seconds,
                  "Seconds after which a job that saves a checkpoint, or ends, and does nothing "
                  "else counts as hanging; default: 5 times the longest save so far, and at least "
                  "1800")
      ->check(CLI::Range(1, 7 * 24 * 3600));
  command
      .add_option("--max-restarts", flags.max_restarts,
                  "How often to start again from the newest checkpoint after a failure; default: 0")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--max-restarts-without-progress", flags.max_restarts_without_progress,
                  "Give up (exit code 9) after N restarts in a row that reached no newer "
                  "checkpoint; default: 3")
      ->check(CLI::PositiveNumber);
  command.add_flag("--restart-after-numerical-abort", flags.restart_after_numerical_abort,
                   "Restart also where loss or gradients are not finite (exit code 7)");
  command
      .add_option("--min-nodes,--min_elastic_nodes", flags.min_nodes,
                  "Let a restart do with N hosts when others failed twice or do not answer; the "
                  "global batch stays as it is; default: all hosts")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--max-nodes,--max_elastic_nodes", flags.max_nodes,
                  "Use at most N hosts at a time, and keep the others standing by; default: all "
                  "hosts")
      ->check(CLI::PositiveNumber);
}

void add_log_flags(CLI::App& command, LaunchFlags& flags) {
  command.option_defaults()->group("Output");
  command
      .add_option("--log-dir,--enable_each_rank_log", flags.log_folder,
                  "Folder for what each rank says, rank-NNNNN.log; default: log in "
                  "training.output_dir")
      ->type_name("DIR");
  command
      .add_option("--log_level", flags.log_level, "What the launcher itself says; default: info")
      ->type_name("debug|info|warning|error");
  command.add_flag("-q,--quiet", flags.quiet, "The same as --log_level error");
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
      "  dstrain launch CONFIG --write-fixed mended.json\n"
      "Other flags of torchrun and DeepSpeed are known: each says when it is given why\n"
      "it has no effect, or how the same is done here.\n"
      "Ctrl-C once: the ranks finish their step, save and end. Twice: at once.\n"
      "Exit codes: 0 success, 2 usage or config, 3 hosts, 4 rendezvous, 5 checkpoint,\n"
      "6 storage, 7 numerical, 8 hang, 9 restarts without progress, 10 memory changed\n"
      "by itself, 130 and 143 interrupted, 128+n a rank was killed by signal n, otherwise that of "
      "the rank\n"
      "that failed first.");
}

}  // namespace dstrain
