#include "launcher/hosts/slurm.h"

#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dstrain::launcher {
namespace {

constexpr size_t kMaxHosts = 1 << 16;
constexpr int kMaxTasks = 1 << 16;  // of one host

[[noreturn]] void fail(std::string_view text, std::string_view what) {
  throw HostfileError(fmt::format("Slurm's \"{}\": {}", text, what));
}

/// Cuts at commas outside of brackets.
std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '[') {
      ++depth;
    } else if (text[i] == ']') {
      --depth;
    }
    if (depth < 0 || depth > 1) fail(text, "unbalanced brackets");
  }
  if (depth != 0) fail(text, "a bracket that is not closed");
  return parts;
}

int to_number(std::string_view digits, std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || digits.front() == '-' || error != std::errc() ||
      end != digits.data() + digits.size()) {
    fail(text, fmt::format("\"{}\" is not a number", digits));
  }
  return number;
}

/// "01-03,7" → 01 02 03 7: as many digits as the range's first number has.
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view text) {
  std::vector<std::string> numbers;
  for (const std::string_view range : split_list(ranges)) {
    const size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const int begin = to_number(first, text);
    const int end = to_number(last, text);
    if (end < begin) fail(text, fmt::format("the range \"{}\" is empty", range));
    if (static_cast<size_t>(end - begin) >= kMaxHosts - numbers.size()) {
      fail(text, fmt::format("more than {} hosts", kMaxHosts));
    }
    for (int number = begin; number <= end; ++number)
      numbers.push_back(fmt::format("{:0{}}", number, first.size()));
  }
  return numbers;
}

/// One part of a list, which may have several brackets: all combinations, the last one fastest.
std::vector<std::string> expand_name(std::string_view name, std::string_view text) {
  std::vector<std::string> names{""};
  while (!name.empty()) {
    const size_t open = name.find('[');
    for (std::string& prefix : names)
      prefix += name.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = name.find(']', open);
    const std::vector<std::string> numbers =
        expand_ranges(name.substr(open + 1, close - open - 1), text);
    if (names.size() * numbers.size() > kMaxHosts) {
      fail(text, fmt::format("more than {} hosts", kMaxHosts));
    }
    std::vector<std::string> longer;
    for (const std::string& prefix : names) {
      for (const std::string& number : numbers)
        longer.push_back(prefix + number);
    }
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text) {
  std::vector<std::string> hosts;
  for (const std::string_view name : split_list(text)) {
    if (name.empty()) fail(text, "a host without a name");
    std::vector<std::string> more = expand_name(name, text);
    if (hosts.size() + more.size() > kMaxHosts) {
      fail(text, fmt::format("more than {} hosts", kMaxHosts));
    }
    hosts.insert(hosts.end(), more.begin(), more.end());
  }
  return hosts;
}

std::vector<int> expand_counts(std::string_view text) {
  std::vector<int> counts;
  for (std::string_view part : split_list(text)) {
    int repeats = 1;
    const size_t open = part.find("(x");
    if (open != std::string_view::npos) {
      if (part.back() != ')') fail(text, "a repetition that is not closed");
      repeats = to_number(part.substr(open + 2, part.size() - open - 3), text);
      part = part.substr(0, open);
    }
    const int count = to_number(part, text);
    if (count < 1 || count > kMaxTasks || repeats < 1 ||
        static_cast<size_t>(repeats) > kMaxHosts - counts.size()) {
      fail(text, fmt::format("{} tasks on {} hosts", count, repeats));
    }
    counts.insert(counts.end(), static_cast<size_t>(repeats), count);
  }
  return counts;
}

std::vector<Host> hosts_of_slurm_allocation(
    const std::function<std::optional<std::string>(const std::string& name)>& environment) {
  const auto variable = [&](const char* name) {
    const std::optional<std::string> value = environment(name);
    if (!value || value->empty()) {
      throw HostfileError(
          fmt::format("--launcher slurm: {} is not set; run inside an allocation, as \"salloc "
                      "--nodes 4 --ntasks-per-node 8 dstrain launch --launcher slurm …\", or in a "
                      "script that sbatch starts",
                      name));
    }
    return *value;
  };
  const std::vector<std::string> names = expand_hostlist(variable("SLURM_JOB_NODELIST"));
  const std::vector<int> tasks = expand_counts(variable("SLURM_TASKS_PER_NODE"));
  if (names.size() != tasks.size()) {
    throw HostfileError(
        fmt::format("SLURM_JOB_NODELIST names {} hosts and SLURM_TASKS_PER_NODE has the tasks of "
                    "{}: inside a job step the two do not match; use those of the script itself",
                    names.size(), tasks.size()));
  }
  std::vector<Host> hosts;
  for (size_t i = 0; i < names.size(); ++i) {
    hosts.push_back({.name = names[i], .slots = slots_up_to(tasks[i])});
  }
  return hosts;
}

std::vector<std::string> srun_command(const std::string& srun,
                                      const std::vector<Host>& hosts,
                                      const std::vector<std::string>& agent) {
  std::vector<std::string> names;
  for (const Host& host : hosts)
    names.push_back(host.name);
  std::vector<std::string> command = {
      srun,
      fmt::format("--nodelist={}", fmt::join(names, ",")),
      fmt::format("--nodes={}", hosts.size()),
      fmt::format("--ntasks={}", hosts.size()),
      "--ntasks-per-node=1",
      "--overlap",             // the allocation is one job's, whatever else its script runs
      "--cpu-bind=none",       // the agent pins the ranks
      "--mem=0",               // all that the allocation has
      "--no-kill",             // a node that fails is the launcher's business
      "--kill-on-bad-exit=0",  // the launcher decides what a lost host means
      "--wait=0",              // and how long the others may take to end
      "--input=none",
      "--quiet",
      "--"};
  command.insert(command.end(), agent.begin(), agent.end());
  return command;
}

}  // namespace dstrain::launcher
