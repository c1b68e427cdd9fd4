#include "engine/train/replica_difference.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;
using Ranks = std::set<int>;
using Value = std::pair<std::uint64_t, std::uint64_t>;

/// "rank 5", "ranks 1, 9 and 13".
std::string ranks_text(const std::vector<std::string>& ranks) {
  if (ranks.size() == 1) return "rank " + ranks.front();
  const std::vector<std::string> first(ranks.begin(), ranks.end() - 1);
  return fmt::format("ranks {} and {}", fmt::join(first, ", "), ranks.back());
}

/// The ranks that may be wrong about one thing.
class Suspects {
 public:
  /// Adds the values of a group's members: those that differ from the majority are suspects;
  /// without a majority all are.
  void add_group(const std::map<int, Value>& values) {
    std::map<Value, Ranks> camps;
    for (const auto& [rank, value] : values) {
      camps[value].insert(rank);
      holders_.insert(rank);
    }
    if (camps.size() < 2) return;
    const auto largest = std::max_element(
        camps.begin(), camps.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    const bool is_majority = 2 * largest->second.size() > values.size();
    Ranks wrong;
    for (const auto& [value, ranks] : camps) {
      if (!is_majority || value != largest->first) wrong.insert(ranks.begin(), ranks.end());
    }
    narrow(wrong);
  }

  /// Two findings about the same bits are most likely one fault, of ranks that are suspects in
  /// both.
  void narrow(const Ranks& wrong) {
    Ranks both;
    std::set_intersection(ranks_.begin(), ranks_.end(), wrong.begin(), wrong.end(),
                          std::inserter(both, both.begin()));
    if (!both.empty()) {
      ranks_ = both;
    } else {
      ranks_.insert(wrong.begin(), wrong.end());
    }
  }

  [[nodiscard]] const Ranks& ranks() const { return ranks_; }
  [[nodiscard]] std::vector<int> others() const {
    std::vector<int> others;
    std::set_difference(holders_.begin(), holders_.end(), ranks_.begin(), ranks_.end(),
                        std::back_inserter(others));
    return others;
  }

 private:
  Ranks holders_;
  Ranks ranks_;
};

}  // namespace

std::string ReplicaDifference::sentence() const {
  std::vector<std::string> named;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    named.push_back(fmt::format("{} (host {})", wrong[i], hosts[i]));
  }
  const std::string of = unit.empty() ? what : fmt::format("{} of {}", what, unit);
  const std::string who = ranks_text(named);
  if (is_own) {
    return fmt::format("on {} the {} are not what the masters there round to", who, of);
  }
  if (agreeing.empty()) {
    return fmt::format("{} have different {}, and nothing shows whose are right", who, of);
  }
  std::vector<std::string> others;
  for (const int rank : agreeing) {
    others.push_back(std::to_string(rank));
  }
  return fmt::format("{} {} other {} than {}", who, wrong.size() == 1 ? "has" : "have", of,
                     ranks_text(others));
}

void to_json(Json& json, const ReplicaDifference& d) {
  json = {{"unit", d.unit},   {"what", d.what},         {"wrong", d.wrong},
          {"hosts", d.hosts}, {"agreeing", d.agreeing}, {"is_own", d.is_own}};
}

void from_json(const Json& json, ReplicaDifference& d) {
  json.at("unit").get_to(d.unit);
  json.at("what").get_to(d.what);
  json.at("wrong").get_to(d.wrong);
  json.at("hosts").get_to(d.hosts);
  json.at("agreeing").get_to(d.agreeing);
  json.at("is_own").get_to(d.is_own);
}

void to_json(Json& json, const HeldCopies& held) {
  Json entries = Json::array();
  for (const HeldCopies::Entry& entry : held.entries) {
    entries.push_back({entry.group, entry.unit, entry.what, entry.sums.plain, entry.sums.weighted});
  }
  json = {{"host", held.host}, {"entries", entries}, {"broken", held.broken_units}};
}

void from_json(const Json& json, HeldCopies& held) {
  json.at("host").get_to(held.host);
  json.at("broken").get_to(held.broken_units);
  for (const Json& entry : json.at("entries")) {
    held.entries.push_back({.group = entry.at(0),
                            .unit = entry.at(1),
                            .what = entry.at(2),
                            .sums = {.plain = entry.at(3), .weighted = entry.at(4)}});
  }
}

ReplicaDifference find_difference(const std::vector<HeldCopies>& held) {
  using Thing = std::pair<std::string, std::string>;                    // unit, what
  std::map<Thing, std::map<std::string, std::map<int, Value>>> values;  // by group, by rank
  std::map<std::string, Ranks> broken;                                  // by unit
  for (int rank = 0; rank < static_cast<int>(held.size()); ++rank) {
    const HeldCopies& own = held[static_cast<std::size_t>(rank)];
    for (const HeldCopies::Entry& entry : own.entries) {
      values[{entry.unit, entry.what}][entry.group][rank] = {entry.sums.plain, entry.sums.weighted};
    }
    for (const std::string& unit : own.broken_units) {
      broken[unit].insert(rank);
    }
  }
  ReplicaDifference difference;
  Suspects suspects;
  for (const auto& [thing, groups] : values) {
    Suspects of_thing;
    for (const auto& [group, of_ranks] : groups) {
      of_thing.add_group(of_ranks);
    }
    if (of_thing.ranks().empty()) continue;
    suspects = of_thing;
    std::tie(difference.unit, difference.what) = thing;
    if (const auto own = broken.find(difference.unit); own != broken.end()) {
      suspects.narrow(own->second);
    }
    difference.agreeing = suspects.others();
    break;
  }
  if (suspects.ranks().empty()) {
    check(!broken.empty(), "replicas differ, and yet all that the ranks tell of them is the same");
    difference.unit = broken.begin()->first;
    difference.what = "parameters";
    difference.is_own = true;
    suspects.narrow(broken.begin()->second);
  }
  difference.wrong.assign(suspects.ranks().begin(), suspects.ranks().end());
  for (const int rank : difference.wrong) {
    difference.hosts.push_back(held[static_cast<std::size_t>(rank)].host);
  }
  return difference;
}

}  // namespace dstrain
