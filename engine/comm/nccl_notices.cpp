#include "engine/comm/nccl_notices.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

/// The limit is for all of them together: a rank that is about to fail does not ask a thousand
/// others.
constexpr std::chrono::seconds kAsking{2};
constexpr std::chrono::seconds kFailureWords{1};
constexpr std::size_t kMostNamed = 8;
constexpr char kGiven = 'i';
constexpr char kRefused = 'r';

std::string list(std::vector<int> ranks) {
  const std::size_t more = ranks.size() > kMostNamed ? ranks.size() - kMostNamed : 0;
  ranks.resize(ranks.size() - more);
  return fmt::format("{}{}", fmt::join(ranks, ", "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
}

}  // namespace

NcclNotices::NcclNotices(Store& store, NcclGroup group) : store_(store), group_(std::move(group)) {}

std::string NcclNotices::key(std::string_view what) const {
  return fmt::format("nccl/{}/{}", group_.name, what);
}

void NcclNotices::give_id(std::string_view id) {
  store_.set(key("id"), std::string(1, kGiven).append(id));
}

void NcclNotices::refuse_id(std::string_view why) {
  store_.set(key("id"), std::string(1, kRefused).append(why));
}

std::string NcclNotices::take_id(std::chrono::milliseconds timeout) {
  std::string value;
  try {
    value = store_.get(key("id"), timeout);
  } catch (const Timeout&) {
    throw Timeout(fmt::format(
        "forming group \"{}\": rank {} of the job, its first, did not come within {:.3g} s",
        group_.name, group_.members.front(), std::chrono::duration<double>(timeout).count()));
  }
  if (value.front() == kRefused) {
    throw PeerLost(fmt::format("forming group \"{}\": rank {} of the job gave up: {}", group_.name,
                               group_.members.front(), value.substr(1)));
  }
  return value.substr(1);
}

void NcclNotices::tell_arrival() {
  store_.add(key(fmt::format("arrived/{}", group_.rank)), 1);
}

std::vector<int> NcclNotices::missing() {
  std::vector<int> ranks;
  for (std::size_t member = 0; member < group_.members.size(); ++member) {
    if (store_.add(key(fmt::format("arrived/{}", member)), 0) == 0) {
      ranks.push_back(group_.members[member]);
    }
  }
  return ranks;
}

void NcclNotices::tell_failure(std::string_view words) noexcept {
  try {
    if (store_.add(key("failures"), 1) == 1) {
      const int world_rank = group_.members[static_cast<std::size_t>(group_.rank)];
      store_.set(key("failure"), fmt::format("rank {} of the job: {}", world_rank, words));
    }
  } catch (const std::exception& failure) {
    spdlog::debug("group \"{}\" could not be told why this rank gives up reason=\"{}\"",
                  group_.name, failure.what());
  }
}

std::optional<std::string> NcclNotices::failure() {
  if (store_.add(key("failures"), 0) == 0) {
    return std::nullopt;
  }
  try {
    return store_.get(key("failure"), kFailureWords);
  } catch (const Timeout&) {
    return "a member gave up, and could not say why";
  }
}

void NcclNotices::tell_waiting(const std::optional<Waiting>& waiting) {
  store_.set(key(fmt::format("waiting/{}", group_.rank)),
             waiting ? fmt::format("{} {}", waiting->number, waiting->call.describe()) : "");
}

/// The collective that the member waits in, of which only the description; nothing where it has not
/// reported one.
std::optional<NcclNotices::Said> NcclNotices::said_by(std::size_t member) {
  std::string text;
  try {
    text = store_.get(key(fmt::format("waiting/{}", member)), std::chrono::milliseconds{0});
  } catch (const Timeout&) {
    return std::nullopt;
  }
  if (text.empty()) {
    return std::nullopt;
  }
  Said said;
  const char* const end = text.data() + text.size();
  const char* const space = std::from_chars(text.data(), end, said.number).ptr;
  said.call.assign(space + 1, end);
  return said;
}

NcclNotices::Comparison NcclNotices::compare(const Waiting& mine) {
  const Clock::time_point deadline = Clock::now() + kAsking;
  const std::string my_call = mine.call.describe();
  Comparison result;
  std::vector<int> here;
  std::vector<int> silent;
  std::string elsewhere;
  std::size_t asked = 0;
  for (; asked < group_.members.size() && Clock::now() < deadline; ++asked) {
    const int world_rank = group_.members[asked];
    if (static_cast<int>(asked) == group_.rank) {
      continue;
    }
    const std::optional<Said> said = said_by(asked);
    // Members need not have the same number of exchanges, so only collectives can be compared.
    const bool has_number =
        mine.call.op != Op::kExchange && said && !said->call.starts_with(name_of(Op::kExchange));
    const bool same_number = has_number && said->number == mine.number;
    if (!said) {
      silent.push_back(world_rank);
    } else if (said->call == my_call && (same_number || !has_number)) {
      here.push_back(world_rank);
    } else {
      result.calls_differ |= same_number;
      elsewhere += elsewhere.empty()
                       ? fmt::format("; rank {} of the job waits in {}", world_rank, said->call)
                       : "";
    }
  }
  if (!silent.empty()) {
    result.text += fmt::format("; rank(s) {} of the job have not reached it", list(silent));
  }
  if (!here.empty()) {
    result.text += fmt::format("; rank(s) {} of the job wait in it too", list(here));
  }
  result.text += elsewhere;
  if (asked < group_.members.size()) {
    result.text += fmt::format("; only the first {} members were asked", asked);
  }
  return result;
}

}  // namespace dstrain
