#include "cmd/launch/agent_places.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/launch/build_id.h"

namespace dstrain {

std::string AgentPlaces::path_on(const std::string& host) const {
  const auto installed = installed_.find(host);
  if (installed != installed_.end()) return installed->second;
  return agent_path_.empty() ? own_program() : agent_path_;
}

std::string AgentPlaces::install_on(const std::string& host) {
  // One folder per build, so that runs of different builds do not disturb each other.
  std::string path = fmt::format(".cache/dstrain/{}/dstrain", own_build_id());
  spdlog::info("{}: sending this build of dstrain to ~/{}", host, path);
  return installed_[host] = std::move(path);
}

void AgentPlaces::forget(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts)
    installed_.erase(host);
}

}  // namespace dstrain
