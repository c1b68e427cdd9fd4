// NcclNotices: what the members of a group leave in the store for each other where NCCL itself
// cannot carry it: its id before they are connected, that one has given up, and what each waits in
// when nothing moves. A running group writes and reads nothing.
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

/// Most functions throw what a Store throws: PeerLost, where the rank that serves it is gone.
class NcclNotices {
 public:
  /// A collective under way. Its number counts the group's collectives up to it, without exchanges,
  /// of which members need not have the same number.
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

  /// The first member gives the others NCCL's id, or a sentence why there is none.
  void give_id(std::string_view id);
  void refuse_id(std::string_view why);
  /// Throws Timeout, or PeerLost with that sentence.
  [[nodiscard]] std::string take_id(std::chrono::milliseconds timeout);

  void tell_arrival();
  /// The world ranks that have not announced their arrival.
  [[nodiscard]] std::vector<int> missing();

  /// Says that this rank has given the group up, and why; the words of the first rank to do so
  /// stay. Where the store is gone, nobody learns of it.
  void tell_failure(std::string_view words) noexcept;
  /// The message of the first rank that gave up, this rank or another.
  [[nodiscard]] std::optional<std::string> failure();

  /// Says what this rank waits in; nullopt: in nothing any more.
  void tell_waiting(const std::optional<Waiting>& waiting);
  /// Compares what the others say they wait in with what this rank waits in.
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
