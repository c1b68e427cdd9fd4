#include "cmd/launch/peer_launcher_flags.h"

#include <array>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace dstrain {
namespace {

constexpr const char* kGroup = "Flags of torchrun and DeepSpeed";

struct PeerFlag {
  const char* name;
  const char* value;  ///< nullptr: a switch
  const char* why;    ///< a clause behind "has no effect: ", or "is refused: "
};

constexpr std::array kWithoutEffect = {
    PeerFlag{"--no_python", nullptr, "there is no Python program to start"},
    PeerFlag{"-m,--module", nullptr, "there is no Python program to start"},
    PeerFlag{"--do_train", nullptr, "a run trains anyway"},
    PeerFlag{"--no_local_rank", nullptr, "ranks learn their place from the environment alone"},
    PeerFlag{"--no_ssh_check", nullptr,
             "all hosts are always asked before a rank starts, at once, within seconds"},
    PeerFlag{"--force_multi", nullptr, "a single host of a hostfile is reached like any other"},
    PeerFlag{"--bind_cores_to_rank", nullptr, "every rank is always given cores of its own"},
    PeerFlag{"--monitor_interval", "X", "the launcher hears of a rank's end at once"},
    PeerFlag{"--start_method", "NAME", "ranks are programs of their own"},
    PeerFlag{"--role", "NAME", "all ranks do the same work"},
    PeerFlag{"-t,--tee", "N", "the output of ranks is both shown and kept in files"},
    PeerFlag{"-r,--redirects", "N", "the output of ranks is both shown and kept in files"},
};

constexpr std::array kRefused = {
    PeerFlag{"--launcher_args", "TEXT",
             "dstrain logs in itself: SSH's settings belong in ~/.ssh/config (or --ssh-config), "
             "srun's in SLURM_* variables"},
    PeerFlag{"--autotuning", "tune|run",
             "dstrain estimate-memory CONFIG --device-memory … says without a run what fits, and "
             "how large a micro-batch may be"},
    PeerFlag{"--save_pid", nullptr,
             "a shell has the launcher's process id in $! after dstrain launch … &"},
    PeerFlag{"--bind_core_list", "LIST",
             "taskset -c LIST dstrain launch … keeps the ranks of this machine on those cores"},
    PeerFlag{"--venv_script", "FILE",
             "there is no Python to prepare; --env NAME=VALUE gives ranks a variable"},
    PeerFlag{"--local_addr", "ADDRESS",
             "--interface NAME, or DSTRAIN_OWN_ADDRESS of dstrain train, says by which address "
             "ranks are reached"},
    PeerFlag{
        "--local_ranks_filter", "LIST",
        "the output of all ranks is shown; each rank's own is in log/rank-NNNNN.log of the run"},
};

void add(CLI::App& command,
         const PeerFlag& flag,
         const std::string& verdict,
         std::vector<std::string>& told) {
  const std::string name = flag.name;
  const std::string sentence =
      fmt::format("{} {}: {}", name.substr(name.find("--")), verdict, flag.why);
  const std::string text =
      (verdict == "is refused" ? "Refused: " : "Without effect: ") + std::string(flag.why);
  if (flag.value == nullptr) {
    command.add_flag_callback(
        name, [&told, sentence] { told.push_back(sentence); }, text);
  } else {
    command
        .add_option_function<std::string>(
            name, [&told, sentence](const std::string&) { told.push_back(sentence); }, text)
        ->type_name(flag.value);
  }
}

}  // namespace

void add_peer_launcher_flags(CLI::App& command, PeerLauncherFlags& flags) {
  command.option_defaults()->group(kGroup);
  command
      .add_option("--nproc_per_node", flags.nproc_per_node,
                  "Ranks on each node, like --num_gpus; gpu: one for each GPU of this "
                  "machine; cpu: one for each of its cores, with training.device \"cpu\"; "
                  "auto: gpu if there is one, else cpu")
      ->type_name("N|gpu|cpu|auto");
  command
      .add_option("--nnodes,--nnode", flags.nnodes,
                  "Number of nodes, like --num_nodes; MIN:MAX also sets --min-nodes: the run "
                  "starts with MAX")
      ->type_name("N|MIN:MAX");
  command
      .add_option("--rdzv_endpoint", flags.rdzv_endpoint,
                  "Address at which nodes that are started by hand meet; default port: 29400. "
                  "The node with that address leads; the others are numbered as they arrive, "
                  "unless --node_rank numbers them")
      ->type_name("HOST[:PORT]");
  command
      .add_option("--rdzv_backend", flags.rdzv_backend,
                  "c10d and static are the same here; others are refused")
      ->type_name("NAME");
  command
      .add_option("--rdzv_conf", flags.rdzv_conf,
                  "timeout=SECONDS is --connect-timeout; others have no effect")
      ->type_name("NAME=VALUE,…");
  command.add_flag("--standalone", flags.standalone,
                   "Use this machine alone, even if there is a /job/hostfile");
  command.add_flag("--elastic_training", flags.elastic_training,
                   "Like DeepSpeed's elastic agent: sets --max-restarts 100 and --min-nodes 1 "
                   "unless these are given");
  command.option_defaults()->group("");  // they speak when they are given
  for (const PeerFlag& flag : kWithoutEffect)
    add(command, flag, "has no effect", flags.without_effect);
  for (const PeerFlag& flag : kRefused)
    add(command, flag, "is refused", flags.refused);
}

}  // namespace dstrain
