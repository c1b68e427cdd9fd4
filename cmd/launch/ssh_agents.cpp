#include "cmd/launch/ssh_agents.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "engine/base/network_address.h"
#include "launcher/process/run_until.h"
#include "launcher/ssh/ssh_config.h"
#include "launcher/ssh/ssh_target.h"

namespace dstrain {
namespace {

using launcher::HostFailure;
using launcher::SshConnection;

launcher::SshConfig read_ssh_config(const std::string& path) {
  if (path.empty()) return launcher::SshConfig::of_this_process();
  return {launcher::SshUser::of_this_process(), path, ""};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

StartedAgent failed(HostFailure failure, const std::string& host) {
  failure.host = host;
  return {.failure = std::move(failure)};
}

}  // namespace

SshAgents::SshAgents(asio::io_context& loop, const FleetOptions& options)
    : loop_(loop),
      options_(options),
      places_(options.agent_path),
      connector_(loop,
                 read_ssh_config(options.ssh_config),
                 {.deadline = options.connect_timeout,
                  .accept_new_host_keys = options.accept_new_host_keys}) {}

void SshAgents::start(const std::vector<std::string>& hosts, const OnStarted& each) {
  places_.forget(hosts);
  run_agents(hosts, log_in(hosts, each), each);
}

void SshAgents::install_and_start(const std::vector<std::string>& hosts, const OnStarted& each) {
  if (hosts.empty()) return;
  // All uploads share it.
  const auto binary = std::make_shared<const std::string>(read_file("/proc/self/exe"));
  Connections connections;
  std::size_t waiting = hosts.size();
  for (const std::string& host : hosts)
    connections.push_back(connections_.at(host).get());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    connections[i]->upload(binary, places_.install_on(hosts[i]), kExecutableMode,
                           [&, i](std::optional<HostFailure> failure) {
                             --waiting;
                             if (!failure) return;
                             connections[i] = nullptr;
                             each(i, failed(std::move(*failure), hosts[i]));
                           });
  }
  launcher::run_until(loop_, [&] { return waiting == 0; });
  run_agents(hosts, connections, each);
}

std::string SshAgents::path_on(const std::string& host) const {
  return places_.path_on(host);
}

SshAgents::Connections SshAgents::log_in(const std::vector<std::string>& hosts,
                                         const OnStarted& each) {
  Connections connections(hosts.size(), nullptr);
  if (hosts.empty()) return connections;
  std::vector<std::string> names;
  for (const std::string& host : hosts) {
    connections_.erase(host);
    names.push_back(in_ssh_form(host));
  }
  bool is_done = false;
  connector_.connect(names, [&](launcher::SshConnector::Connected connected) {
    auto failure = connected.failures.begin();
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (connected.connections[i]) {
        connections[i] = connected.connections[i].get();
        connections_[hosts[i]] = std::move(connected.connections[i]);
      } else if (failure != connected.failures.end()) {
        each(i, failed(std::move(*failure++), hosts[i]));
      }
    }
    is_done = true;
  });
  launcher::run_until(loop_, [&] { return is_done; });
  return connections;
}

void SshAgents::run_agents(const std::vector<std::string>& hosts,
                           const Connections& connections,
                           const OnStarted& each) {
  std::size_t waiting = 0;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    SshConnection* const connection = connections[i];
    if (connection == nullptr) continue;
    ++waiting;
    connection->start({path_on(hosts[i]), "agent"}, [&, i](SshConnection::Started started) {
      --waiting;
      if (started.failure) {
        each(i, failed(std::move(*started.failure), hosts[i]));
        return;
      }
      each(i, {.stream = std::move(started.stream)});
    });
  }
  launcher::run_until(loop_, [&] { return waiting == 0; });
}

std::string SshAgents::in_ssh_form(const std::string& host) const {
  const launcher::SshTarget target = launcher::parse_ssh_target(host);
  if (options_.ssh_port == 0 || target.port != 0) return host;
  return (target.user.empty() ? "" : target.user + "@") +
         host_and_port(target.host, options_.ssh_port);
}

}  // namespace dstrain
