#include "cmd/launch/fleet.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/launch/build_id.h"
#include "launcher/agent/host_probe.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"
#include "launcher/process/local_stream.h"
#include "launcher/process/run_until.h"

namespace dstrain {
namespace {

using launcher::AgentHost;
using launcher::Host;
using launcher::HostFailure;

constexpr std::chrono::seconds kDismissPatience{10};

}  // namespace

bool has_other_machines(const std::vector<Host>& hosts) {
  return std::any_of(hosts.begin(), hosts.end(),
                     [](const Host& host) { return !launcher::is_this_machine(host.name); });
}

/// One machine. All names of this machine are one member.
struct Fleet::Member {
  std::string name;  ///< of the first host that is this machine, as the hostfile has it
  bool is_own = false;
  std::unique_ptr<AgentHost> agent;
  std::optional<HostFailure> failure;

  [[nodiscard]] bool is_serving() const { return agent && !agent->has_closed(); }
  /// The host's address as its agent gives it; empty if there is no agent.
  [[nodiscard]] std::string address() const {
    return agent && agent->has_greeted() ? agent->hello().address : "";
  }
};

void AgentStarter::install_and_start(const std::vector<std::string>& hosts, const OnStarted& each) {
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    each(i, {.failure = HostFailure{
                 .host = hosts[i],
                 .phase = kBuildPhase,
                 .what = "this launcher cannot send a build of dstrain there",
                 .fix = "install this build there, or put it on a file system that all share"}});
  }
}

bool AgentStarter::is_own(const std::string& host) const {
  return launcher::is_this_machine(host);
}

Fleet::Fleet(asio::io_context& loop, std::unique_ptr<AgentStarter> starter, MayInstall may_install)
    : loop_(loop),
      may_install_(may_install == MayInstall::kYes),
      own_path_(own_program()),
      own_build_(own_build_id()),
      starter_(std::move(starter)) {}

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
    absent.push_back(member);
  }
  start_agents(absent, &AgentStarter::start);
  if (may_install_) {
    std::vector<Member*> without;
    std::copy_if(absent.begin(), absent.end(), std::back_inserter(without), [](const Member* m) {
      return m->failure && m->failure->phase == kBuildPhase && !m->is_own;
    });
    for (Member* member : without) {
      member->failure.reset();
      member->agent.reset();
    }
    start_agents(without, &AgentStarter::install_and_start);
  }
  std::vector<HostFailure> failures;
  for (const Member* member : all) {
    if (member->failure) failures.push_back(*member->failure);
  }
  return failures;
}

Fleet::Member* Fleet::find(const std::string& host) const {
  const bool is_own = starter_->is_own(host);
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
  members_.back()->is_own = starter_->is_own(host);
  return *members_.back();
}

void Fleet::start_agents(const std::vector<Member*>& members, Start start) {
  int waiting = 0;
  std::vector<Member*> others;
  std::vector<std::string> names;
  for (Member* member : members) {
    if (member->is_own) continue;
    others.push_back(member);
    names.push_back(member->name);
  }
  // This comes first, since it may throw, and greetings refer to what lives here.
  ((*starter_).*start)(names, [&](std::size_t index, StartedAgent started) {
    Member& member = *others[index];
    member.failure = std::move(started.failure);
    if (member.failure) return;
    greet(member, std::move(started.stream), waiting);
  });
  for (Member* member : members) {
    if (!member->is_own) continue;
    const std::vector<std::string> argv = {own_path_, "agent"};
    greet(*member, std::make_unique<launcher::LocalStream>(loop_, argv), waiting);
  }
  launcher::run_until(loop_, [&] { return waiting == 0; });
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
    member.failure =
        HostFailure{.host = member.name,
                    .phase = is_missing ? kBuildPhase : "agent",
                    .what = is_missing ? fmt::format("there is no dstrain at {}", path_of(member))
                                       : failure->why,
                    .fix = is_missing ? kBuildFix : ""};
  });
}

std::string Fleet::path_of(const Member& member) const {
  return member.is_own ? own_path_ : starter_->path_on(member.name);
}

void Fleet::judge_build(Member& member) const {
  const launcher::AgentHello& hello = member.agent->hello();
  if (hello.build_id == own_build_) return;
  member.failure =
      HostFailure{.host = member.name,
                  .phase = kBuildPhase,
                  .what = fmt::format(
                      "{} is another build of dstrain: {} ({}), and here it is {} ({})",
                      path_of(member), hello.version, hello.build_id, own_version(), own_build_),
                  .fix = kBuildFix};
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

std::string Fleet::address_of(const std::string& host) const {
  const Member* const member = find(host);
  if (member != nullptr && !member->is_own && !member->address().empty()) return member->address();
  // The address of this machine is the one from which its packets to any of the others leave.
  for (const auto& other : members_) {
    if (other->is_own || other->address().empty()) continue;
    try {
      return launcher::address_towards(other->address());
    } catch (const launcher::PreflightError&) {  // it is behind a jump host
    }
  }
  return "127.0.0.1";
}

std::unique_ptr<launcher::Spawner> Fleet::spawner(const std::vector<Host>& hosts) const {
  std::map<std::string, AgentHost*> agents;
  for (const Host& host : hosts)
    agents[host.name] = &agent_of(host.name);
  return std::make_unique<launcher::AgentSpawner>(std::move(agents));
}

std::vector<launcher::HostAnswer> Fleet::ask(const std::vector<Host>& hosts,
                                             const launcher::HostQuestion& question,
                                             std::chrono::milliseconds patience) {
  struct Answers {
    std::vector<std::optional<launcher::HostAnswer>> of_hosts;
    std::size_t missing = 0;
  };
  // Shared with answers that come when nobody waits any more.
  const auto answers = std::make_shared<Answers>();
  answers->of_hosts.resize(hosts.size());
  answers->missing = hosts.size();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    agent_of(hosts[i].name).ask(question, [answers, i](launcher::HostAnswer answer) {
      answers->of_hosts[i] = std::move(answer);
      --answers->missing;
    });
  }
  launcher::run_until(
      loop_, [&] { return answers->missing == 0; }, patience);
  std::vector<launcher::HostAnswer> all;
  for (auto& answer : answers->of_hosts) {
    all.push_back(answer
                      ? std::move(*answer)
                      : launcher::HostAnswer{
                            .error = fmt::format("no answer within {} s; is a disk hanging there?",
                                                 std::chrono::duration<double>(patience).count())});
  }
  return all;
}

std::map<std::string, launcher::HostAnswer> Fleet::ask_for_gpus(const std::vector<Host>& hosts) {
  // A driver that nobody holds awake takes its time, GPU after GPU.
  constexpr std::chrono::seconds kPatience{60};
  const std::vector<Host> machines = serving(hosts);
  std::vector<launcher::HostAnswer> answers =
      ask(machines, {.kind = launcher::QuestionKind::kGpus}, kPatience);
  std::map<std::string, launcher::HostAnswer> by_machine;
  for (std::size_t i = 0; i < machines.size(); ++i)
    by_machine[machine_id(machines[i].name)] = std::move(answers[i]);
  return by_machine;
}

void Fleet::dismiss() {
  std::vector<AgentHost*> agents;
  for (const auto& member : members_) {
    if (member->is_serving()) agents.push_back(member->agent.get());
  }
  if (agents.empty()) return;
  for (const std::string& name :
       launcher::dismiss_agents(loop_, agents, kDismissPatience, farewell_)) {
    spdlog::warn("{}: its agent has not ended {} s after it was told to", name,
                 kDismissPatience.count());
  }
}

}  // namespace dstrain
