#include "tests/harness/local_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dstrain {

LocalGroup::LocalGroup(std::string name,
                       std::vector<int> members,
                       std::chrono::milliseconds timeout)
    : name_(std::move(name)),
      members_(std::move(members)),
      timeout_(timeout),
      joined_(members_.size(), false),
      left_(members_.size(), false),
      arrived_(members_.size(), false),
      calls_(members_.size()),
      buffers_(members_.size()),
      mailboxes_(members_.size() * members_.size()) {}

void LocalGroup::join(int rank) {
  const Lock lock(mutex_);
  check(!joined_[static_cast<std::size_t>(rank)], "rank {} joins group {} twice", rank, name_);
  joined_[static_cast<std::size_t>(rank)] = true;
}

void LocalGroup::leave(int rank) noexcept {
  const Lock lock(mutex_);
  left_[static_cast<std::size_t>(rank)] = true;
  changed_.notify_all();
}

void LocalGroup::abort() noexcept {
  const Lock lock(mutex_);
  if (failure_ == nullptr) {
    failure_ = std::make_exception_ptr(PeerLost(fmt::format("group \"{}\" was aborted", name_)));
  }
  changed_.notify_all();
}

void LocalGroup::collective(int rank,
                            const Call& call,
                            Buffers buffers,
                            const std::function<void(std::span<const Buffers>)>& work) {
  Lock lock(mutex_);
  buffers_[static_cast<std::size_t>(rank)] = buffers;
  meet(rank, call, lock);
  lock.unlock();
  work(buffers_);
  lock.lock();
  depart(lock);
}

void LocalGroup::meet(int rank, const Call& call, Lock& lock) {
  throw_if_failed();
  const auto seat = static_cast<std::size_t>(rank);
  check(!arrived_[seat], "{}: this rank is already in a collective, on another stream",
        who(rank, call.describe()));
  arrived_[seat] = true;
  calls_[seat] = call;
  if (std::find(arrived_.begin(), arrived_.end(), false) == arrived_.end()) {
    for (std::size_t other = 1; other < calls_.size(); ++other) {
      if (calls_[other] != calls_[0]) {
        fail(std::make_exception_ptr(
            InternalError(fmt::format("group \"{}\": rank 0 calls {} while rank {} calls {}", name_,
                                      calls_[0].describe(), other, calls_[other].describe()))));
      }
    }
    arrived_.assign(arrived_.size(), false);
    ++meetings_;
    changed_.notify_all();
    return;
  }
  const std::uint64_t mine = meetings_;
  const auto someone_left = [&] {
    for (std::size_t other = 0; other < left_.size(); ++other) {
      if (left_[other] && !arrived_[other]) {
        return true;
      }
    }
    return false;
  };
  const bool woken = changed_.wait_for(
      lock, timeout_, [&] { return meetings_ != mine || failure_ != nullptr || someone_left(); });
  if (meetings_ != mine) {
    return;
  }
  throw_if_failed();
  if (!woken) {
    fail(std::make_exception_ptr(Timeout(
        fmt::format("{}: rank(s) {} did not arrive within {:.3g} s", who(rank, call.describe()),
                    absent(arrived_), std::chrono::duration<double>(timeout_).count()))));
  }
  fail(std::make_exception_ptr(PeerLost(
      fmt::format("{}: rank(s) {} left the group", who(rank, call.describe()), absent(arrived_)))));
}

// Everyone has arrived and is only moving memory, so this wait is short and has no way out: leaving
// early would free buffers that others still read.
void LocalGroup::depart(Lock& lock) {
  const std::uint64_t mine = departures_;
  if (++departing_ == size()) {
    departing_ = 0;
    ++departures_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return departures_ != mine; });
}

void LocalGroup::exchange(int rank, std::span<const P2p> messages, const Call& call) {
  const std::string what = fmt::format("{} of {} message(s), {}", name_of(call.op), messages.size(),
                                       name_of(call.purpose));
  std::deque<Parcel> parcels;  // a deque: the mailboxes point into it
  Lock lock(mutex_);
  throw_if_failed();
  for (const P2p& message : messages) {
    check(message.peer >= 0 && message.peer < size() && message.peer != rank,
          "{}: with rank {} of a group of {}", who(rank, what), message.peer, size());
    if (message.kind == P2p::Kind::kSend) {
      parcels.push_back({.tensor = message.tensor});
      mailbox(rank, message.peer).push_back(&parcels.back());
    }
  }
  changed_.notify_all();
  const auto withdraw = [&] {
    for (int peer = 0; peer < size(); ++peer) {
      std::erase_if(mailbox(rank, peer), [&](const Parcel* waiting) {
        return std::any_of(parcels.begin(), parcels.end(),
                           [&](const Parcel& mine) { return &mine == waiting; });
      });
    }
  };
  try {
    for (const P2p& message : messages) {
      if (message.kind == P2p::Kind::kReceive) {
        take(rank, message, what, lock);
      }
    }
    const auto all_taken = [&] {
      return std::all_of(parcels.begin(), parcels.end(), [](const Parcel& p) { return p.taken; });
    };
    if (!changed_.wait_for(lock, timeout_, [&] { return all_taken() || failure_ != nullptr; })) {
      fail(std::make_exception_ptr(
          Timeout(fmt::format("{}: what it sent was not received within {:.3g} s", who(rank, what),
                              std::chrono::duration<double>(timeout_).count()))));
    }
    if (!all_taken()) {
      throw_if_failed();
    }
  } catch (...) {  // the parcels are about to go: nobody may find them any more
    withdraw();
    throw;
  }
}

void LocalGroup::take(int rank, const P2p& receive, const std::string& what, Lock& lock) {
  auto& parcels = mailbox(receive.peer, rank);
  const auto peer_left = [&] { return left_[static_cast<std::size_t>(receive.peer)]; };
  const bool woken = changed_.wait_for(
      lock, timeout_, [&] { return !parcels.empty() || failure_ != nullptr || peer_left(); });
  throw_if_failed();
  if (!woken) {
    fail(std::make_exception_ptr(
        Timeout(fmt::format("{}: rank {} sent nothing within {:.3g} s", who(rank, what),
                            receive.peer, std::chrono::duration<double>(timeout_).count()))));
  }
  if (parcels.empty()) {
    fail(std::make_exception_ptr(
        PeerLost(fmt::format("{}: rank {} left the group", who(rank, what), receive.peer))));
  }
  Parcel& parcel = *parcels.front();
  if (parcel.tensor.dtype() != receive.tensor.dtype() ||
      parcel.tensor.numel() != receive.tensor.numel()) {
    fail(std::make_exception_ptr(InternalError(
        fmt::format("{}: rank {} sends {}[{}] and rank {} receives {}[{}]", who(rank, what),
                    receive.peer, name_of(parcel.tensor.dtype()), parcel.tensor.numel(), rank,
                    name_of(receive.tensor.dtype()), receive.tensor.numel()))));
  }
  if (receive.tensor.bytes() > 0) {
    std::memcpy(receive.tensor.data(), parcel.tensor.data(),
                static_cast<std::size_t>(receive.tensor.bytes()));
  }
  parcels.pop_front();
  parcel.taken = true;
  changed_.notify_all();
}

void LocalGroup::fail(std::exception_ptr failure) {
  failure_ = std::move(failure);
  changed_.notify_all();
  std::rethrow_exception(failure_);
}

void LocalGroup::throw_if_failed() const {
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

std::string LocalGroup::who(int rank, const std::string& what) const {
  return fmt::format("{} in group \"{}\" on rank {} of {}", what, name_, rank, size());
}

std::string LocalGroup::absent(const std::vector<bool>& present) const {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < present.size(); ++rank) {
    if (!present[rank]) {
      ranks.push_back(rank);
    }
  }
  return fmt::format("{}", fmt::join(ranks, ", "));
}

}  // namespace dstrain
