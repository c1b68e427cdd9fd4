// HostPool: chooses which of the hostfile's hosts take part in the next attempt.
//
// It takes the first hosts, at most max_nodes and at least min_nodes, that answer, have not failed
// twice, and make a number of ranks that the run can be divided into. Those beyond max_nodes stand
// by. Where min_nodes is all of them, nobody is left out.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launcher/hosts/hostfile.h"

namespace dstrain::launcher {

struct HostPoolLimits {
  int min_nodes = 0;              ///< 0: as many as max_nodes
  int max_nodes = 0;              ///< 0: all
  int failures_to_leave_out = 2;  ///< a host that failed so often is left out
};

class HostPool {
 public:
  /// Throws HostfileError if the limits contradict each other or the hosts.
  HostPool(std::vector<Host> hosts, const HostPoolLimits& limits);

  /// Returns the `hosts` that do not answer, by name, each with the reason.
  using FindSilent = std::function<std::map<std::string, std::string>(const std::vector<Host>&)>;
  /// Whether the run can be divided over the ranks of these hosts.
  using Fits = std::function<bool(const std::vector<Host>&)>;

  struct Choice {
    std::vector<Host> hosts;
    std::vector<std::string> notices;  ///< sentences: who is left out, and why; each said once
  };
  /// Throws PreflightError where too few are left.
  Choice choose(const FindSilent& find_silent, const Fits& fits);

  /// Counts a failed attempt against the hosts that caused it.
  void add_failures(const std::vector<std::string>& hosts);

  /// True if a smaller number of hosts will do as well.
  [[nodiscard]] bool is_elastic() const { return min_nodes_ < max_nodes_; }

 private:
  const std::vector<Host> hosts_;
  std::size_t min_nodes_ = 0;
  std::size_t max_nodes_ = 0;
  int failures_to_leave_out_ = 0;
  std::map<std::string, int> failures_;
  std::map<std::string, std::string> told_;  ///< what was last said of each host
};

}  // namespace dstrain::launcher
