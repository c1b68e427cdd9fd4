#include "launcher/hosts/hostfile.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/base/amount_text.h"
#include "engine/base/regular_file.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kSpaces = " \t\r\n\v\f";
constexpr int kMaxSlots = 1 << 16;  // a host with more is a slip of the keyboard

std::string_view strip(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

/// The number at the start of `text`; takes it off. Empty if there is none or it is too large.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

struct Line {
  Host host;
  std::string_view ignored;  ///< what follows the number
};

/// nonspace+ space+ "slots=" digit+, and whatever follows.
Line parse_line(std::string_view line, const std::string& where) {
  const auto fail = [&](const std::string& hint) {
    throw HostfileError(fmt::format("{}: \"{}\": expected \"HOST slots=N\"{}", where, line, hint));
  };
  const size_t name_end = line.find_first_of(kSpaces);
  if (name_end == std::string_view::npos) {
    fail(line.starts_with("slots=") ? ", the host's name is missing" : ", the slots are missing");
  }
  std::string_view rest = strip(line.substr(name_end));
  constexpr std::string_view kKey = "slots=";
  if (!rest.starts_with(kKey)) fail(", with no space around \"=\" and slots before anything else");
  rest.remove_prefix(kKey.size());
  if (rest.empty() || rest.front() < '0' || rest.front() > '9') {
    fail(", where N is a whole number without sign");
  }
  const std::optional<int> count = take_number(rest);
  if (!count || *count > kMaxSlots) fail(fmt::format(", where N is at most {}", kMaxSlots));
  return {{std::string(line.substr(0, name_end)), slots_up_to(*count)}, rest};
}

}  // namespace

std::vector<int> slots_up_to(int count) {
  std::vector<int> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

Hostfile parse_hostfile(std::string_view text, const std::string& path) {
  Hostfile result;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<int> first_seen;  // line of hosts[i]
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = strip(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;

    const std::string where = fmt::format("{}:{}", path, number);
    Line parsed = parse_line(line, where);
    const auto same = std::find_if(result.hosts.begin(), result.hosts.end(),
                                   [&](const Host& h) { return h.name == parsed.host.name; });
    if (same != result.hosts.end()) {
      throw HostfileError(fmt::format(
          "{}: host {} is already in line {}; give it one line with all its slots", where,
          same->name, first_seen[static_cast<size_t>(same - result.hosts.begin())]));
    }
    const std::string_view ignored = strip(parsed.ignored);
    if (!ignored.empty() && ignored.front() != '#') {
      result.warnings.push_back(
          fmt::format("{}: \"{}\" after slots={} is ignored, as DeepSpeed does", where, ignored,
                      parsed.host.slots.size()));
    }
    if (parsed.host.slots.empty()) {
      result.warnings.push_back(
          fmt::format("{}: host {} has slots=0 and takes no part", where, parsed.host.name));
    }
    first_seen.push_back(number);
    result.hosts.push_back(std::move(parsed.host));
  }
  if (result.hosts.empty()) {
    throw HostfileError(
        fmt::format("{}: no hosts in it; expected lines of the form \"HOST slots=N\"", path));
  }
  return result;
}

Hostfile read_hostfile(const std::string& path) {
  const FileText file = read_regular_file(path, kMostHandWrittenBytes, MayBePipe::kYes);
  if (!file.why.empty()) {
    throw HostfileError(fmt::format(
        "hostfile {}: cannot be read: {}; leave --hostfile out to run on this machine only", path,
        file.why));
  }
  return parse_hostfile(file.text, path);
}

namespace {

/// One NODE[:slot[,slot…]] of --include or --exclude.
struct Selection {
  size_t host = 0;         ///< index
  std::vector<int> slots;  ///< all of them if none was given
};

std::string slots_text(const std::vector<int>& slots) {
  if (slots.empty()) return "none";
  if (slots.size() == 1) return fmt::format("slot {} alone", slots.front());
  return static_cast<size_t>(slots.back() - slots.front()) + 1 == slots.size()
             ? fmt::format("slots {} to {}", slots.front(), slots.back())
             : fmt::format("slots {}", fmt::join(slots, ", "));
}

Selection parse_selection(std::string_view text,
                          std::string_view flag,
                          const std::vector<Host>& hosts) {
  const auto find = [&](std::string_view name) {
    return static_cast<size_t>(
        std::find_if(hosts.begin(), hosts.end(), [&](const Host& h) { return h.name == name; }) -
        hosts.begin());
  };
  // Tries the whole text first, since names may hold colons (IPv6, host:port).
  if (const size_t whole = find(text); whole < hosts.size()) return {whole, hosts[whole].slots};

  const size_t colon = text.rfind(':');
  const std::string_view name = text.substr(0, colon);
  Selection selection{find(name), {}};
  if (selection.host == hosts.size()) {
    std::vector<std::string> names;
    for (const Host& host : hosts)
      names.push_back(host.name);
    throw HostfileError(fmt::format("{} {}: there is no host \"{}\"; the hosts are {}", flag, text,
                                    name, fmt::join(names, ", ")));
  }
  if (colon == std::string_view::npos) return selection;  // unreachable: found as a whole above

  const Host& host = hosts[selection.host];
  std::string_view list = text.substr(colon + 1);
  while (true) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view item = strip(list.substr(0, comma));
    const std::string shown(item);
    const std::optional<int> slot = item.empty() ? std::nullopt : take_number(item);
    if (!slot || !item.empty()) {
      throw HostfileError(
          fmt::format("{} {}: \"{}\" is not a slot number; expected HOST, or HOST:SLOT,SLOT…", flag,
                      text, shown));
    }
    if (!std::binary_search(host.slots.begin(), host.slots.end(), *slot)) {
      throw HostfileError(fmt::format("{} {}: host {} has no slot {}; it has {}", flag, text,
                                      host.name, *slot, slots_text(host.slots)));
    }
    selection.slots.push_back(*slot);
    if (comma == list.size()) return selection;
    list.remove_prefix(comma + 1);
  }
}

/// The slots of each host that the flag's value names: ascending, without repetition.
std::vector<std::vector<int>> selected_slots(std::string_view value,
                                             std::string_view flag,
                                             const std::vector<Host>& hosts) {
  std::vector<std::vector<int>> selected(hosts.size());
  while (true) {
    const size_t at = std::min(value.find('@'), value.size());
    const Selection selection = parse_selection(strip(value.substr(0, at)), flag, hosts);
    std::vector<int>& slots = selected[selection.host];
    slots.insert(slots.end(), selection.slots.begin(), selection.slots.end());
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    if (at == value.size()) return selected;
    value.remove_prefix(at + 1);
  }
}

void refuse_contradictions(const HostFilter& filter) {
  if (!filter.include.empty() && !filter.exclude.empty()) {
    throw HostfileError("--include and --exclude cannot be given together");
  }
  if ((filter.num_nodes || filter.num_gpus) &&
      (!filter.include.empty() || !filter.exclude.empty())) {
    throw HostfileError(
        "--num_nodes and --num_gpus cannot be given together with --include or --exclude");
  }
  if (filter.num_nodes && *filter.num_nodes < 1) {
    throw HostfileError(fmt::format("--num_nodes {}: expected at least 1", *filter.num_nodes));
  }
  if (filter.num_gpus && (*filter.num_gpus < 1 || *filter.num_gpus > kMaxSlots)) {
    throw HostfileError(
        fmt::format("--num_gpus {}: expected 1 to {}", *filter.num_gpus, kMaxSlots));
  }
}

}  // namespace

std::vector<Host> filter_hosts(std::vector<Host> hosts, const HostFilter& filter) {
  refuse_contradictions(filter);
  if (!filter.include.empty()) {
    const auto included = selected_slots(filter.include, "--include", hosts);
    for (size_t i = 0; i < hosts.size(); ++i)
      hosts[i].slots = included[i];
  }
  if (!filter.exclude.empty()) {
    const auto excluded = selected_slots(filter.exclude, "--exclude", hosts);
    for (size_t i = 0; i < hosts.size(); ++i) {
      std::erase_if(hosts[i].slots, [&](int slot) {
        return std::binary_search(excluded[i].begin(), excluded[i].end(), slot);
      });
    }
  }
  std::erase_if(hosts, [](const Host& host) { return host.slots.empty(); });

  if (filter.num_nodes) {
    if (static_cast<size_t>(*filter.num_nodes) > hosts.size()) {
      throw HostfileError(fmt::format("--num_nodes {}: there are only {} hosts with slots",
                                      *filter.num_nodes, hosts.size()));
    }
    hosts.resize(static_cast<size_t>(*filter.num_nodes));
  }
  if (filter.num_gpus) {
    for (Host& host : hosts) {
      if (static_cast<size_t>(*filter.num_gpus) > host.slots.size()) {
        throw HostfileError(fmt::format("--num_gpus {}: host {} has slots={} in the hostfile",
                                        *filter.num_gpus, host.name, host.slots.size()));
      }
      host.slots.resize(static_cast<size_t>(*filter.num_gpus));
    }
  }
  if (hosts.empty()) {
    throw HostfileError(filter.empty() ? "the hostfile has no slots: nothing would run"
                                       : "the filters leave no slot: nothing would run");
  }
  return hosts;
}

std::vector<Host> hosts_without_hostfile(const HostFilter& filter,
                                         const std::vector<int>& gpus,
                                         bool may_share) {
  refuse_contradictions(filter);
  if (filter.num_nodes.value_or(1) > 1) {
    throw HostfileError(fmt::format(
        "--num_nodes {}: more than this machine needs a --hostfile that names the hosts",
        *filter.num_nodes));
  }
  const std::string name = "localhost";
  if (gpus.empty() && !filter.include.empty()) {
    const std::vector<int> asked =
        selected_slots(filter.include, "--include", {{name, slots_up_to(kMaxSlots)}}).front();
    const bool is_all = asked.size() == static_cast<size_t>(kMaxSlots);
    return {{name, is_all ? slots_up_to(1) : asked}};
  }
  std::vector<int> slots = gpus;
  if (filter.num_gpus) {
    const auto asked = static_cast<size_t>(*filter.num_gpus);
    if (gpus.empty() || (may_share && asked > gpus.size())) slots = slots_up_to(*filter.num_gpus);
    if (asked > slots.size()) {
      throw HostfileError(fmt::format(
          "--num_gpus {}: this machine has {}; --share-gpus lets ranks take turns on one, --set "
          "training.device=cpu takes none",
          asked, counted(static_cast<std::int64_t>(gpus.size()), "GPU")));
    }
    slots.resize(asked);
  } else if (gpus.empty()) {
    slots = slots_up_to(1);
  }
  HostFilter rest = filter;
  rest.num_gpus.reset();
  return filter_hosts({{name, slots}}, rest);
}

std::vector<Host> imagined_hosts(const HostFilter& filter) {
  constexpr std::int64_t kMostRanks = 1 << 20;
  refuse_contradictions(filter);
  const int slots = filter.num_gpus.value_or(1);
  const std::int64_t ranks = std::int64_t{filter.num_nodes.value_or(1)} * slots;
  if (ranks > kMostRanks) {
    throw HostfileError(
        fmt::format("--num_nodes {} × --num_gpus {} is {} ranks: expected at most {}",
                    filter.num_nodes.value_or(1), slots, ranks, kMostRanks));
  }
  std::vector<Host> hosts;
  for (int node = 1; node <= filter.num_nodes.value_or(1); ++node) {
    hosts.push_back({fmt::format("node{}", node), slots_up_to(slots)});
  }
  return hosts;
}

}  // namespace dstrain::launcher
