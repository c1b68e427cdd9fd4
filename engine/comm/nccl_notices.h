// NcclNotices: what the members of a group leave in the store for each other where NCCL itself is
// no way: its id before they are connected, that one has given up, and what each waits in when
// nothing moves. A running group writes and reads nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/nccl_group.h"
#include "engine/comm/store.h"

namespace dstrain {

/// Most throw what a Store does: PeerLost, where the rank that serves it is gone.
class NcclNotices {
 public:
  /// A collective under way: how many the group had up to it, exchanges not counted, as members
  /// need not have the same number of those.
  struct Waiting {
    std::uint64_t number = 0;
    Call call;
  };
  struct Comparison {
    bool calls_differ = false;  ///< another member's collective of that number is another one
    std::string text;           ///< "rank(s) 3 of the job have not reached it"
  };

  /// `store` must outlive it.
  NcclNotices(Store& store, NcclGroup group);

  /// From the first member to the others: NCCL's id, or a sentence why there is none.
  void give_id(std::string_view id);
  void refuse_id(std::string_view why);
  /// Throws Timeout, or PeerLost with that sentence.
  [[nodiscard]] std::string take_id(std::chrono::milliseconds timeout);

  void tell_arrival();
  /// World ranks that have not told their arrival.
  [[nodiscard]] std::vector<int> missing();

  /// That this rank has given the group up, and why; the first one's words stay. Where the store
  /// is gone, nobody learns of it.
  void tell_failure(std::string_view words) noexcept;
  /// What the first one said, this rank or another.
  [[nodiscard]] std::optional<std::string> failure();

  /// nullopt: in nothing any more.
  void tell_waiting(const std::optional<Waiting>& waiting);
  /// What the others say they wait in, beside what this one does.
  [[nodiscard]] Comparison compare(const Waiting& mine);

 private:
  struct Said {
    std::uint64_t number = 0;
    std::string call;
  };
  [[nodiscard]] std::optional<Said> said_by(std::size_t member);
  [[nodiscard]] std::string key(std::string_view what) const;

  Store& store_;
  const NcclGroup group_;
};

}  // namespace dstrain
