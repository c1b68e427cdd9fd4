// AgentPlaces: where dstrain is on each host that is reached over SSH: where the user says, where
// it is here, or where this build has been sent.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dstrain {

class AgentPlaces {
 public:
  /// `agent_path` is the path that the user gave; empty: dstrain's path on this machine.
  explicit AgentPlaces(std::string agent_path) : agent_path_(std::move(agent_path)) {}

  [[nodiscard]] std::string path_on(const std::string& host) const;
  /// The path that this build is to be sent to, from the user's home; path_on() from now on.
  std::string install_on(const std::string& host);
  /// Forgets where this build was sent on hosts that may have been reinstalled.
  void forget(const std::vector<std::string>& hosts);

 private:
  const std::string agent_path_;
  std::map<std::string, std::string> installed_;  // the paths that this build was sent to
};

constexpr int kExecutableMode = 0755;

}  // namespace dstrain
