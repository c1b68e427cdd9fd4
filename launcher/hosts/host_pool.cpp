#include "launcher/hosts/host_pool.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dstrain::launcher {

HostPool::HostPool(std::vector<Host> hosts, const HostPoolLimits& limits)
    : hosts_(std::move(hosts)), failures_to_leave_out_(limits.failures_to_leave_out) {
  const std::size_t all = hosts_.size();
  max_nodes_ =
      limits.max_nodes == 0 ? all : std::min(all, static_cast<std::size_t>(limits.max_nodes));
  min_nodes_ = limits.min_nodes == 0 ? max_nodes_ : static_cast<std::size_t>(limits.min_nodes);
  if (min_nodes_ > all) {
    throw HostfileError(fmt::format("--min-nodes {}, but {} host{} chosen", min_nodes_, all,
                                    all == 1 ? " is" : "s are"));
  }
  if (limits.max_nodes != 0 && limits.min_nodes > limits.max_nodes) {
    throw HostfileError(fmt::format("--min-nodes {} is more than --max-nodes {}", limits.min_nodes,
                                    limits.max_nodes));
  }
}

void HostPool::add_failures(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts)
    ++failures_[host];
}

HostPool::Choice HostPool::choose(const FindSilent& find_silent, const Fits& fits) {
  Choice choice;
  const std::map<std::string, std::string> silent = find_silent(hosts_);
  std::vector<Host> able;
  std::vector<std::string> reasons;
  const auto leave_out = [&](const Host& host, const std::string& why) {
    reasons.push_back(fmt::format("{} {}", host.name, why));
    if (std::exchange(told_[host.name], why) != why) {
      choice.notices.push_back(fmt::format("host {} is left out: it {}", host.name, why));
    }
  };
  const auto is_faulty = [&](const Host& host) {
    return failures_[host.name] >= failures_to_leave_out_;
  };
  const auto num_sound = std::count_if(hosts_.begin(), hosts_.end(), [&](const Host& host) {
    return !silent.contains(host.name) && !is_faulty(host);
  });
  // A host that fails often is better than none.
  const bool enough_without_faulty = static_cast<std::size_t>(num_sound) >= min_nodes_;
  for (const Host& host : hosts_) {
    if (const auto found = silent.find(host.name); found != silent.end()) {
      leave_out(host, "does not answer: " + found->second);
    } else if (enough_without_faulty && is_faulty(host)) {
      leave_out(host, fmt::format("failed {} times", failures_[host.name]));
    } else {
      able.push_back(host);
    }
  }
  for (std::size_t count = std::min(able.size(), max_nodes_); count >= min_nodes_ && count > 0;
       --count) {
    choice.hosts.assign(able.begin(), able.begin() + static_cast<std::ptrdiff_t>(count));
    if (fits(choice.hosts)) return choice;
  }
  if (able.size() >= min_nodes_) {
    throw PreflightError(
        fmt::format("the run cannot be divided over {} to {} of the {} hosts that are left",
                    min_nodes_, std::min(able.size(), max_nodes_), able.size()));
  }
  throw PreflightError(fmt::format("{} of {} hosts are left, and at least {} are needed: {}",
                                   able.size(), hosts_.size(), min_nodes_,
                                   fmt::join(reasons, "; ")));
}

}  // namespace dstrain::launcher
