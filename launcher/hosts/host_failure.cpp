#include "launcher/hosts/host_failure.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace dstrain::launcher {

std::string to_table(const std::vector<HostFailure>& failures, std::size_t num_hosts) {
  std::set<std::string> hosts;  // one may have several
  std::size_t host_width = 0;
  std::size_t phase_width = 0;
  for (const HostFailure& failure : failures) {
    hosts.insert(failure.host);
    host_width = std::max(host_width, failure.host.size());
    phase_width = std::max(phase_width, failure.phase.size());
  }
  std::string table =
      num_hosts == 1 ? std::string("the host cannot be used:\n")
                     : fmt::format("{} of {} hosts cannot be used:\n", hosts.size(), num_hosts);
  for (const HostFailure& failure : failures) {
    table += fmt::format("  {:<{}}  {:<{}}  {}\n", failure.host, host_width, failure.phase,
                         phase_width, failure.what);
    if (!failure.fix.empty()) {
      table += fmt::format("  {:{}}  {:{}}  -> {}\n", "", host_width, "", phase_width, failure.fix);
    }
  }
  return table;
}

}  // namespace dstrain::launcher
