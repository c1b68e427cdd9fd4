#include "cmd/fleet.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/build_id.h"
#include "launcher/local_host.h"
#include "launcher/local_stream.h"
#include "launcher/ssh_config.h"
#include "launcher/ssh_target.h"

namespace dstrain {
namespace {

using launcher::AgentHost;
using launcher::Host;
using launcher::HostFailure;

constexpr std::chrono::seconds kDismissPatience{10};
constexpr const char* kBuildPhase = "build";
constexpr const char* kBuildFix =
    "--copy-binary sends this one there; or install it, or say where it is by --agent-path";

/// Runs the loop until `done()`, for so long at most.
template <typename Condition>
void run_until(asio::io_context& loop,
               const Condition& done,
               std::chrono::milliseconds patience = std::chrono::hours{1}) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  loop.restart();
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    if (loop.run_one_until(deadline) == 0) break;
  }
}

launcher::SshConfig read_ssh_config(const std::string& path) {
  if (path.empty()) return launcher::SshConfig::of_this_process();
  return {launcher::SshUser::of_this_process(), path, ""};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Where --copy-binary puts it, from the user's home: a folder a build, so that runs of different
/// builds do not disturb each other.
std::string cached_path(const std::string& build) {
  return fmt::format(".cache/dstrain/{}/dstrain", build);
}

}  // namespace

bool has_other_machines(const std::vector<Host>& hosts) {
  return std::any_of(hosts.begin(), hosts.end(),
                     [](const Host& host) { return !launcher::is_this_machine(host.name); });
}

/// One machine. All names of this machine are one member.
struct Fleet::Member {
  std::string name;  ///< as in the hostfile, of the first host that is this machine
  bool is_own = false;
  std::unique_ptr<launcher::SshConnection> connection;
  std::unique_ptr<AgentHost> agent;
  std::optional<launcher::GreetingFailure> greeting_failure;
  std::optional<HostFailure> failure;
  std::string path;  ///< of dstrain there

  [[nodiscard]] bool is_serving() const { return agent && !agent->has_closed(); }
};

Fleet::Fleet(asio::io_context& loop, FleetOptions options)
    : loop_(loop),
      options_(std::move(options)),
      own_path_(std::filesystem::read_symlink("/proc/self/exe")),
      own_build_(own_build_id()),
      connector_(loop,
                 read_ssh_config(options_.ssh_config),
                 {.deadline = options_.connect_timeout,
                  .accept_new_host_keys = options_.accept_new_host_keys}) {}

Fleet::~Fleet() {
  dismiss();
}

std::vector<HostFailure> Fleet::connect(const std::vector<Host>& hosts) {
  std::vector<Member*> all;
  std::vector<Member*> absent;
  for (const Host& host : hosts) {
    Member* const member = &member_of(host.name);
    if (std::find(all.begin(), all.end(), member) != all.end()) continue;
    all.push_back(member);
    if (member->is_serving()) continue;
    member->failure.reset();
    member->agent.reset();
    member->connection.reset();
    member->path = options_.agent_path.empty() || member->is_own ? own_path_ : options_.agent_path;
    absent.push_back(member);
  }
  log_in(absent);
  start_agents(absent);
  if (options_.copy_binary) {
    std::vector<Member*> without;
    std::copy_if(absent.begin(), absent.end(), std::back_inserter(without), [](const Member* m) {
      return m->failure && m->failure->phase == kBuildPhase && !m->is_own;
    });
    copy_binary_to(without);
    start_agents(without);
  }
  std::vector<HostFailure> failures;
  for (const Member* member : all) {
    if (member->failure) failures.push_back(*member->failure);
  }
  return failures;
}

Fleet::Member* Fleet::find(const std::string& host) const {
  const bool is_own = launcher::is_this_machine(host);
  const auto known =
      std::find_if(members_.begin(), members_.end(), [&](const std::unique_ptr<Member>& member) {
        return is_own ? member->is_own : member->name == host;
      });
  return known == members_.end() ? nullptr : known->get();
}

Fleet::Member& Fleet::member_of(const std::string& host) {
  if (Member* known = find(host)) return *known;
  members_.push_back(std::make_unique<Member>());
  members_.back()->name = host;
  members_.back()->is_own = launcher::is_this_machine(host);
  return *members_.back();
}

std::string Fleet::in_ssh_form(const std::string& host) const {
  launcher::SshTarget target = launcher::parse_ssh_target(host);
  if (options_.ssh_port == 0 || target.port != 0) return host;
  const bool is_ipv6 = target.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", target.user, target.user.empty() ? "" : "@",
                     is_ipv6 ? "[" + target.host + "]" : target.host, options_.ssh_port);
}

void Fleet::log_in(const std::vector<Member*>& members) {
  std::vector<Member*> remote;
  std::vector<std::string> names;
  for (Member* member : members) {
    if (member->is_own) continue;
    remote.push_back(member);
    names.push_back(in_ssh_form(member->name));
  }
  if (remote.empty()) return;
  bool is_done = false;
  connector_.connect(names, [&](launcher::SshConnector::Connected connected) {
    auto failure = connected.failures.begin();
    for (std::size_t i = 0; i < remote.size(); ++i) {
      remote[i]->connection = std::move(connected.connections[i]);
      if (remote[i]->connection || failure == connected.failures.end()) continue;
      remote[i]->failure = *failure++;
      remote[i]->failure->host = remote[i]->name;
    }
    is_done = true;
  });
  run_until(loop_, [&] { return is_done; });
}

void Fleet::start_agents(const std::vector<Member*>& members) {
  int waiting = 0;
  for (Member* member : members) {
    const std::vector<std::string> argv = {member->path, "agent"};
    if (member->is_own) {
      member->failure.reset();
      greet(*member, std::make_unique<launcher::LocalStream>(loop_, argv), waiting);
    } else if (member->connection) {
      if (member->failure && member->failure->phase != kBuildPhase) continue;
      member->failure.reset();
      ++waiting;
      member->connection->start(argv,
                                [this, member, &waiting](launcher::SshConnection::Started started) {
                                  --waiting;
                                  member->failure = std::move(started.failure);
                                  if (member->failure) {
                                    member->failure->host = member->name;
                                  } else {
                                    greet(*member, std::move(started.stream), waiting);
                                  }
                                });
    }
  }
  run_until(loop_, [&] { return waiting == 0; });
}

void Fleet::greet(Member& member, std::unique_ptr<launcher::ByteStream> stream, int& waiting) {
  member.agent = std::make_unique<AgentHost>(
      loop_, member.name, std::move(stream),
      launcher::AgentHostOptions{.on_words = [name = member.name](std::string_view line) {
        spdlog::info("{}: {}", name, line);
      }});
  ++waiting;
  member.agent->greet([this, &member,
                       &waiting](const std::optional<launcher::GreetingFailure>& failure) {
    --waiting;
    if (!failure) return judge_build(member);
    const bool is_missing = failure->is_missing;
    member.failure = HostFailure{
        .host = member.name,
        .phase = is_missing ? kBuildPhase : "agent",
        .what = is_missing ? fmt::format("there is no dstrain at {}", member.path) : failure->why,
        .fix = is_missing ? kBuildFix : ""};
  });
}

void Fleet::judge_build(Member& member) const {
  const launcher::AgentHello& hello = member.agent->hello();
  if (hello.build_id == own_build_) return;
  member.failure = HostFailure{
      .host = member.name,
      .phase = kBuildPhase,
      .what = fmt::format("{} is another build of dstrain: {} ({}), and here it is {} ({})",
                          member.path, hello.version, hello.build_id, own_version(), own_build_),
      .fix = kBuildFix};
}

void Fleet::copy_binary_to(const std::vector<Member*>& members) {
  if (members.empty()) return;
  // Shared by the uploads to all hosts.
  const auto binary = std::make_shared<const std::string>(read_file("/proc/self/exe"));
  constexpr int kExecutable = 0755;
  int waiting = 0;
  for (Member* member : members) {
    member->agent.reset();
    member->path = cached_path(own_build_);
    ++waiting;
    spdlog::info("{}: sending this build of dstrain to ~/{}", member->name, member->path);
    member->connection->upload(binary, member->path, kExecutable,
                               [member, &waiting](std::optional<HostFailure> failure) {
                                 --waiting;
                                 if (!failure) return;
                                 failure->host = member->name;
                                 member->failure = std::move(failure);
                               });
  }
  run_until(loop_, [&] { return waiting == 0; });
}

AgentHost& Fleet::agent_of(const std::string& host) const {
  const Member* const member = find(host);
  if (member == nullptr || !member->agent) {
    throw std::logic_error(fmt::format("host {} has not been connected to", host));
  }
  return *member->agent;
}

const AgentHost* Fleet::agent_if_serving(const std::string& host) const {
  const Member* const member = find(host);
  return member != nullptr && !member->failure && member->is_serving() ? member->agent.get()
                                                                       : nullptr;
}

std::vector<Host> Fleet::serving(const std::vector<Host>& hosts) const {
  std::vector<Host> serving;
  std::set<const AgentHost*> seen;
  for (const Host& host : hosts) {
    const AgentHost* const agent = agent_if_serving(host.name);
    if (agent != nullptr && seen.insert(agent).second) serving.push_back(host);
  }
  return serving;
}

std::vector<Fleet::Question> Fleet::to_each(const std::vector<Host>& hosts,
                                            const launcher::HostQuestion& question) {
  std::vector<Question> questions;
  for (const Host& host : hosts)
    questions.emplace_back(host.name, question);
  return questions;
}

std::string Fleet::address_of(const std::string& host) const {
  const Member* const member = find(host);
  if (member != nullptr && member->connection) {
    return member->connection->host_address().to_string();
  }
  // This machine: as any of the others sees it.
  for (const auto& other : members_) {
    if (other->connection) return other->connection->own_address().to_string();
  }
  return "127.0.0.1";
}

std::unique_ptr<launcher::Spawner> Fleet::spawner(const std::vector<Host>& hosts) const {
  std::map<std::string, AgentHost*> agents;
  for (const Host& host : hosts)
    agents[host.name] = &agent_of(host.name);
  return std::make_unique<launcher::AgentSpawner>(std::move(agents));
}

std::vector<launcher::HostAnswer> Fleet::ask(const std::vector<Question>& questions,
                                             std::chrono::milliseconds patience) {
  struct Answers {
    std::vector<std::optional<launcher::HostAnswer>> of_hosts;
    std::size_t missing = 0;
  };
  // Shared with answers that come when nobody waits any more.
  const auto answers = std::make_shared<Answers>();
  answers->of_hosts.resize(questions.size());
  answers->missing = questions.size();
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const auto& [host, question] = questions[i];
    agent_of(host).ask(question, [answers, i](launcher::HostAnswer answer) {
      answers->of_hosts[i] = std::move(answer);
      --answers->missing;
    });
  }
  run_until(
      loop_, [&] { return answers->missing == 0; }, patience);
  std::vector<launcher::HostAnswer> all;
  for (auto& answer : answers->of_hosts) {
    all.push_back(answer
                      ? std::move(*answer)
                      : launcher::HostAnswer{
                            .error = fmt::format("no answer within {} s: a disk that hangs?",
                                                 std::chrono::duration<double>(patience).count())});
  }
  return all;
}

void Fleet::dismiss() {
  std::vector<AgentHost*> agents;
  for (const auto& member : members_) {
    if (member->is_serving()) agents.push_back(member->agent.get());
  }
  if (agents.empty()) return;
  for (const std::string& name : launcher::dismiss_agents(loop_, agents, kDismissPatience)) {
    spdlog::warn("{}: its agent has not ended {} s after it was told to", name,
                 kDismissPatience.count());
  }
}

}  // namespace dstrain
