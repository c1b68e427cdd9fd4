// Hostfile: DeepSpeed's "host slots=N" lines, and the flags that choose among them.
//
// Accepts every hostfile that DeepSpeed accepts. Where DeepSpeed is silent (text after the number,
// slots=0) there is a warning; where its filters do not do what its documentation says (a host
// without slots, slots that do not exist, --num_nodes beyond the file), these do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/process/errors.h"

namespace dstrain::launcher {

struct Host {
  std::string name;  ///< as the hostfile has it: "w0", "10.0.0.7", "user@w0"
  /// Ascending; one rank runs in each, and of a run on GPUs slot s takes the s-th GPU that the host
  /// shows (CUDA_VISIBLE_DEVICES there counts).
  std::vector<int> slots;

  bool operator==(const Host&) const = default;
};

/// 0 to count - 1.
std::vector<int> slots_up_to(int count);

struct Hostfile {
  std::vector<Host> hosts;            ///< in the order of the file; slots 0…N-1
  std::vector<std::string> warnings;  ///< "file:line: …"
};

/// Throws HostfileError: "file:line: what is wrong, what was expected".
Hostfile read_hostfile(const std::string& path);
/// The same for text that is already here; `path` is for messages.
Hostfile parse_hostfile(std::string_view text, const std::string& path);

/// --include, --exclude, --num_nodes, --num_gpus.
struct HostFilter {
  std::string include{};           ///< "w0@w1:0,2": these hosts, all slots or the listed ones
  std::string exclude{};           ///< in the same grammar; all hosts but these
  std::optional<int> num_nodes{};  ///< the number of hosts, from the first
  std::optional<int> num_gpus{};   ///< slots 0…N-1 of every host

  [[nodiscard]] bool empty() const {
    return include.empty() && exclude.empty() && !num_nodes && !num_gpus;
  }
};

/// Returns what the filter leaves, in the order of `hosts`; hosts without slots are left out.
/// Throws HostfileError if flags contradict each other, name what is not there, or leave nothing.
std::vector<Host> filter_hosts(std::vector<Host> hosts, const HostFilter& filter);

/// The hosts where there is no hostfile: this machine. `gpus` are the slots that it has; where it
/// computes on CPUs (empty) it has as many as are asked for, by --num_gpus or by --include, and
/// otherwise one. `may_share`: --num_gpus may be more than there are.
std::vector<Host> hosts_without_hostfile(const HostFilter& filter,
                                         const std::vector<int>& gpus,
                                         bool may_share = false);

/// Hosts to plan with, which need not exist, named "node1", "node2", …: --num_nodes of them with
/// --num_gpus slots each, one of either unless it is given.
std::vector<Host> imagined_hosts(const HostFilter& filter);

}  // namespace dstrain::launcher
