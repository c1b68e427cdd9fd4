// HostFailure: why a host cannot take part, and what to do about it; and the table in which those
// of all hosts are shown at once.
#pragma once

#include <string>
#include <vector>

namespace dstrain::launcher {

struct HostFailure {
  std::string host{};   ///< as in the hostfile
  std::string phase{};  ///< what was being done: "connect", "host key"
  std::string what{};   ///< one sentence
  std::string fix{};    ///< what to do, as an imperative; may be empty
  /// The thing for which OpenSSH's client would be needed, as a noun; empty: there is nothing that
  /// it could do better.
  std::string openssh_for{};
};

/// "2 of 32 hosts cannot be used:" and a paragraph each.
std::string to_table(const std::vector<HostFailure>& failures, std::size_t num_hosts);

}  // namespace dstrain::launcher
