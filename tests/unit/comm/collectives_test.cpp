// Every collective, on every carrier, against sums computed here from what each rank is known to
// have put in.
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>

#include <catch2/catch.hpp>

#include "tests/harness/local_rendezvous.h"
#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

std::mutex catch_mutex;  // Catch's assertions are not for several threads at once

#define CHECK_LOCKED(...)                          \
  do {                                             \
    const std::lock_guard catch_lock(catch_mutex); \
    CHECK(__VA_ARGS__);                            \
  } while (false)

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, BF16> || std::is_same_v<T, F16>;

template <typename T>
T make(double value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, F16>) {
    return to_f16(static_cast<float>(value));
  } else if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(value));
  } else {
    return static_cast<T>(value);
  }
}
template <typename T>
double value_of(T element) {
  if constexpr (kIsHalf<T>) {
    return static_cast<double>(to_float(element));
  } else {
    return static_cast<double>(element);
  }
}

template <typename T>
std::vector<T> input(int rank, std::int64_t elements, std::int64_t first = 0) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    values.push_back(make<T>(sample(rank, first + i)));
  }
  return values;
}

template <typename T>
Tensor tensor(std::vector<T>& values) {
  return {values.data(), DTypeOf<T>::value, Shape{static_cast<std::int64_t>(values.size())}};
}

/// ((r0 + r1) + r2) + … in the type the sum is made in, rounded once.
template <typename T>
T expected(int size, std::int64_t i, ReduceOp op) {
  using Wide = std::conditional_t<kIsHalf<T>, float, T>;
  auto sum = static_cast<Wide>(value_of(make<T>(sample(0, i))));
  for (int rank = 1; rank < size; ++rank) {
    const auto next = static_cast<Wide>(value_of(make<T>(sample(rank, i))));
    sum = op == ReduceOp::kSum ? static_cast<Wide>(sum + next) : std::max(sum, next);
  }
  return make<T>(static_cast<double>(sum));
}

template <typename T>
std::int64_t mismatches(const std::vector<T>& got, const std::vector<T>& want) {
  std::int64_t count = got.size() == want.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    count += std::memcmp(&got[i], &want[i], sizeof(T)) != 0;
  }
  return count;
}

const Carrier kCarriers[] = {Carrier::kLocal, Carrier::kShared, Carrier::kUnix,
                             Carrier::kTcp,   Carrier::kHosts,  Carrier::kEncryptedTcp,
                             Carrier::kStaged};

template <typename T>
void check_reductions(Communicator& group, std::int64_t elements, ReduceOp op) {
  InlineStream stream;
  const int size = group.size();
  std::vector<T> all = input<T>(group.rank(), elements);
  group.all_reduce(tensor(all), op, Purpose::kGradient, stream);
  std::vector<T> want;
  for (std::int64_t i = 0; i < elements; ++i) {
    want.push_back(expected<T>(size, i, op));
  }
  CHECK_LOCKED(mismatches(all, want) == 0);

  std::vector<T> in = input<T>(group.rank(), elements * size);
  std::vector<T> out(static_cast<std::size_t>(elements));
  group.reduce_scatter(tensor(in), tensor(out), op, Purpose::kGradient, stream);
  want.clear();
  for (std::int64_t i = 0; i < elements; ++i) {
    want.push_back(expected<T>(size, group.rank() * elements + i, op));
  }
  CHECK_LOCKED(mismatches(out, want) == 0);
  // Into this rank's own slice of the input.
  const Tensor whole = tensor(in);
  const Tensor mine = whole.flat(group.rank() * elements, (group.rank() + 1) * elements);
  group.reduce_scatter(whole, mine, op, Purpose::kGradient, stream);
  if (elements > 0) {
    CHECK_LOCKED(std::memcmp(mine.data(), want.data(), static_cast<std::size_t>(mine.bytes())) ==
                 0);
  }
}

template <typename T>
void check_movement(Communicator& group, std::int64_t elements) {
  InlineStream stream;
  const int size = group.size();
  std::vector<T> want;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<T> part = input<T>(rank, elements);
    want.insert(want.end(), part.begin(), part.end());
  }
  std::vector<T> in = input<T>(group.rank(), elements);
  std::vector<T> out(want.size());
  group.all_gather(tensor(in), tensor(out), Purpose::kParameter, stream);
  CHECK_LOCKED(mismatches(out, want) == 0);

  std::vector<T> in_place(want.size());
  const Tensor mine = tensor(in_place).flat(group.rank() * elements, (group.rank() + 1) * elements);
  if (elements > 0) {
    std::memcpy(mine.data(), in.data(), static_cast<std::size_t>(mine.bytes()));
  }
  group.all_gather(mine, tensor(in_place), Purpose::kParameter, stream);
  CHECK_LOCKED(mismatches(in_place, want) == 0);

  for (int root = 0; root < size; ++root) {
    std::vector<T> values = input<T>(group.rank(), elements);
    group.broadcast(tensor(values), root, Purpose::kParameter, stream);
    CHECK_LOCKED(mismatches(values, input<T>(root, elements)) == 0);
  }

  // Each rank sends to every other one and receives from every other one, in one batch; two
  // messages to the next rank, which must arrive in order.
  std::vector<std::vector<T>> received(static_cast<std::size_t>(size));
  std::vector<T> second = input<T>(group.rank() + 100, elements + 1);
  std::vector<T> second_received(second.size());
  std::vector<P2p> messages;
  const int next = (group.rank() + 1) % size;
  const int previous = (group.rank() + size - 1) % size;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != group.rank()) {
      auto& slot = received[static_cast<std::size_t>(peer)];
      slot.resize(static_cast<std::size_t>(elements));
      messages.push_back({P2p::Kind::kSend, peer, tensor(in)});
      messages.push_back({P2p::Kind::kReceive, peer, tensor(slot)});
    }
  }
  messages.push_back({P2p::Kind::kReceive, previous, tensor(second_received)});
  messages.push_back({P2p::Kind::kSend, next, tensor(second)});
  group.exchange(messages, Purpose::kActivation, stream);
  for (int peer = 0; peer < size; ++peer) {
    if (peer != group.rank()) {
      CHECK_LOCKED(mismatches(received[static_cast<std::size_t>(peer)], input<T>(peer, elements)) ==
                   0);
    }
  }
  CHECK_LOCKED(mismatches(second_received, input<T>(previous + 100, elements + 1)) == 0);
}

/// What member `from` sends to member `to`: a size of its own for each pair, for some nothing.
template <typename T>
std::vector<T> part(int from, int to, std::int64_t most) {
  return input<T>(16 * from + to, (from * 7 + to * 3) % 5 * most / 4);
}

template <typename T>
void check_all_to_all(Communicator& group, std::int64_t most) {
  InlineStream stream;
  const int me = group.rank();
  std::vector<T> in;
  std::vector<T> want;
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
  const auto append = [](const std::vector<T>& values, std::vector<T>& to,
                         std::vector<std::int64_t>& counts) {
    to.insert(to.end(), values.begin(), values.end());
    counts.push_back(static_cast<std::int64_t>(values.size()));
  };
  for (int peer = 0; peer < group.size(); ++peer) {
    append(part<T>(me, peer, most), in, sent);
    append(part<T>(peer, me, most), want, received);
  }
  std::vector<T> out(want.size());
  group.all_to_all(tensor(in), sent, tensor(out), received, Purpose::kActivation, stream);
  CHECK_LOCKED(mismatches(out, want) == 0);
}

TEST_CASE("all_to_all delivers parts of unequal sizes, and none of what is empty", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    for (const int size : {1, 2, 3, 5}) {
      INFO(name_of(carrier) << ", " << size << " ranks");
      run_ranks(carrier, size, [](Communicator& group) {
        for (const std::int64_t most : {0, 4, 28, 100'004}) {
          check_all_to_all<float>(group, most);
          check_all_to_all<BF16>(group, most);
          check_all_to_all<std::int32_t>(group, most);
          check_all_to_all<std::uint8_t>(group, most);
        }
      });
    }
  }
}

TEST_CASE("all_to_all is refused where the counts are not those of the tensors", "[comm]") {
  run_ranks(Carrier::kLocal, 1, [](Communicator& group) {
    InlineStream stream;
    std::vector<float> in(3);
    std::vector<float> out(3);
    const auto refused = [&](std::vector<std::int64_t> sent, std::vector<std::int64_t> received) {
      return !thrown<InternalError>([&] {
                group.all_to_all(tensor(in), sent, tensor(out), received, Purpose::kActivation,
                                 stream);
              }).empty();
    };
    CHECK_FALSE(refused({3}, {3}));
    CHECK(refused({2}, {3}));
    CHECK(refused({3}, {2}));
    CHECK(refused({1, 2}, {3}));
    CHECK(refused({}, {3}));
  });
}

TEST_CASE("reductions equal sums and maxima computed in rank order, bit for bit", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    for (const int size : {2, 3, 4}) {
      INFO(name_of(carrier) << ", " << size << " ranks");
      run_ranks(carrier, size, [](Communicator& group) {
        for (const std::int64_t elements : {0, 1, 7, 4099}) {
          for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
            check_reductions<float>(group, elements, op);
            check_reductions<BF16>(group, elements, op);
            check_reductions<F16>(group, elements, op);
            check_reductions<double>(group, elements, op);
            check_reductions<std::int32_t>(group, elements, op);
          }
        }
      });
    }
  }
}

TEST_CASE("gather, broadcast and exchange deliver what was sent", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    for (const int size : {2, 3, 4}) {
      INFO(name_of(carrier) << ", " << size << " ranks");
      run_ranks(carrier, size, [](Communicator& group) {
        for (const std::int64_t elements : {0, 1, 7, 4099}) {
          check_movement<float>(group, elements);
          check_movement<BF16>(group, elements);
          check_movement<F16>(group, elements);
          check_movement<std::int32_t>(group, elements);
        }
        group.barrier();
      });
    }
  }
}

TEST_CASE("buffers of many segments, of a size that divides by nothing", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    for (const int size : {2, 3}) {
      INFO(name_of(carrier) << ", " << size << " ranks");
      run_ranks(carrier, size, [](Communicator& group) {
        check_reductions<float>(group, 400'009, ReduceOp::kSum);
        check_reductions<BF16>(group, 400'009, ReduceOp::kSum);
        check_reductions<F16>(group, 400'009, ReduceOp::kSum);
        check_movement<float>(group, 400'009);
      });
    }
  }
}

/// Integers of few values, which are quickly made and whose sums are exact.
std::vector<std::int32_t> steps(int factor, std::int64_t elements, std::int64_t first = 0) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < elements; ++i) {
    values[static_cast<std::size_t>(i)] = factor * static_cast<std::int32_t>((first + i) % 1009);
  }
  return values;
}

void check_size(Communicator& group, std::int64_t elements) {
  InlineStream stream;
  const int size = group.size();
  const int rank = group.rank();
  const int all = size * (size + 1) / 2;
  std::vector<std::int32_t> values = steps(rank + 1, elements);
  group.all_reduce(tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
  CHECK_LOCKED(values == steps(all, elements));
  std::vector<std::int32_t> whole = steps(rank + 1, elements * size);
  group.reduce_scatter(tensor(whole), tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
  CHECK_LOCKED(values == steps(all, elements, rank * elements));
  group.all_gather(tensor(values), tensor(whole), Purpose::kParameter, stream);
  CHECK_LOCKED(whole == steps(all, elements * size));
  group.broadcast(tensor(values), size - 1, Purpose::kParameter, stream);
  CHECK_LOCKED(values == steps(all, elements, (size - 1) * elements));
  std::vector<std::int32_t> sent = steps(rank + 1, elements);
  const int previous = (rank + size - 1) % size;
  const std::array<P2p, 2> messages{P2p{P2p::Kind::kSend, (rank + 1) % size, tensor(sent)},
                                    P2p{P2p::Kind::kReceive, previous, tensor(values)}};
  group.exchange(messages, Purpose::kActivation, stream);
  CHECK_LOCKED(values == steps(previous + 1, elements));
}

TEST_CASE("the members of several hosts get the same bits, however many a host has", "[comm]") {
  const std::vector<int> layouts[] = {
      {0, 0, 1, 1},
      {0, 0, 0, 1, 1},
      {0, 1, 1, 1, 1},
      {0, 0, 1, 2, 2, 2},
      {0, 0, 0, 0, 1, 1, 1, 1},
      {0, 1, 0, 1, 0, 1}};  // no chain of hosts adds in the order of these ranks
  for (const std::vector<int>& hosts : layouts) {
    INFO(Catch::Detail::stringify(hosts));
    run_on_hosts(hosts, wire_here(), [](Communicator& group) {
      for (const std::int64_t elements : {0, 1, 20'011}) {
        check_reductions<float>(group, elements, ReduceOp::kSum);
        check_reductions<BF16>(group, elements, ReduceOp::kSum);
        check_reductions<BF16>(group, elements, ReduceOp::kMax);
        check_reductions<F16>(group, elements, ReduceOp::kSum);
        check_reductions<double>(group, elements, ReduceOp::kSum);
        check_reductions<std::int32_t>(group, elements, ReduceOp::kSum);
        check_movement<BF16>(group, elements);
      }
      check_size(group, 1'000'017);  // many segments in each lane
      group.barrier();
    });
  }
}

// A segment has 256 KiB in these groups, a link four or eight of them.
TEST_CASE("sizes around those of a head's payload, of a segment and of a ring", "[comm]") {
  for (const Carrier carrier : {Carrier::kShared, Carrier::kUnix}) {
    for (const int size : {2, 3, 5}) {
      INFO(name_of(carrier) << ", " << size << " ranks");
      run_ranks(carrier, size, [](Communicator& group) {
        constexpr std::int64_t kPayload = (16 << 10) / 4;
        constexpr std::int64_t kSegment = (256 << 10) / 4;
        for (const std::int64_t border : {kPayload, kSegment, 4 * kSegment, 8 * kSegment}) {
          for (const std::int64_t elements : {border - 1, border, border + 1}) {
            check_size(group, elements);
          }
        }
      });
    }
  }
}

template <typename T>
void check_nan_in_maximum(Communicator& group) {
  InlineStream stream;
  std::vector<T> values(3, make<T>(1.0));
  values[static_cast<std::size_t>(group.rank())] = make<T>(NAN);
  group.all_reduce(tensor(values), ReduceOp::kMax, Purpose::kMetric, stream);
  for (const T value : values) {
    CHECK_LOCKED(std::isnan(value_of(value)));
  }
}

TEST_CASE("a maximum keeps a NaN, wherever it is", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    run_ranks(carrier, 3, [](Communicator& group) {
      check_nan_in_maximum<float>(group);
      check_nan_in_maximum<BF16>(group);
      check_nan_in_maximum<F16>(group);
    });
  }
}

TEST_CASE("bf16 is rounded once, not once a rank", "[comm]") {
  // 256 + 1 + 1: bf16 has 8 significant bits, so rounding after each sum would stay at 256.
  for (const Carrier carrier : kCarriers) {
    run_ranks(carrier, 3, [](Communicator& group) {
      InlineStream stream;
      std::vector<BF16> values{to_bf16(group.rank() == 0 ? 256.0f : 1.0f)};
      group.all_reduce(tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
      CHECK_LOCKED(to_float(values[0]) == 258.0f);
    });
  }
}

TEST_CASE("f16 is rounded once, and overflows to infinity only in the end", "[comm]") {
  // f16 has 11 significant bits: rounding 2048 + 1 after each sum would stay at 2048. Its largest
  // number is 65504; sums on the way may be larger, and what stays so must be seen as infinity.
  constexpr double kOfRank[3][5] = {{2048.0, 60000.0, 60000.0, -60000.0, INFINITY},
                                    {1.0, 60000.0, 60000.0, -60000.0, 1.0},
                                    {1.0, -60000.0, 0.0, 0.0, -INFINITY}};
  for (const Carrier carrier : kCarriers) {
    run_ranks(carrier, 3, [&](Communicator& group) {
      InlineStream stream;
      std::vector<F16> values;
      for (const double value : kOfRank[group.rank()]) {
        values.push_back(make<F16>(value));
      }
      group.all_reduce(tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
      CHECK_LOCKED(value_of(values[0]) == 2050.0);
      CHECK_LOCKED(value_of(values[1]) == 60000.0);
      CHECK_LOCKED(value_of(values[2]) == INFINITY);
      CHECK_LOCKED(value_of(values[3]) == -INFINITY);
      CHECK_LOCKED(std::isnan(value_of(values[4])));
    });
  }
}

TEST_CASE("a group of one touches nothing and needs nobody", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    run_ranks(carrier, 1, [](Communicator& group) {
      InlineStream stream;
      CHECK(group.rank() == 0);
      CHECK(group.size() == 1);
      std::vector<float> values{1.0f, 2.0f};
      std::vector<float> out(2);
      group.all_reduce(tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
      group.broadcast(tensor(values), 0, Purpose::kParameter, stream);
      group.all_gather(tensor(values), tensor(out), Purpose::kParameter, stream);
      CHECK(out == std::vector<float>{1.0f, 2.0f});
      values = {3.0f, 4.0f};
      group.reduce_scatter(tensor(values), tensor(out), ReduceOp::kSum, Purpose::kGradient, stream);
      CHECK(out == std::vector<float>{3.0f, 4.0f});
      group.exchange({}, Purpose::kActivation, stream);
      group.barrier();
    });
  }
}

TEST_CASE("groups of some members work side by side with the world", "[comm]") {
  const auto store = make_memory_store();
  const auto local = make_local_rendezvous(4);
  for (const Carrier carrier : {Carrier::kLocal, Carrier::kShared}) {
    run_threads(4, [&](int rank) {
      const auto sockets = carrier == Carrier::kShared
                               ? make_process_rendezvous(rank, 4, *store, {.wire = wire_here()})
                               : nullptr;
      Rendezvous& rendezvous = sockets ? *sockets : *local[static_cast<std::size_t>(rank)];
      const bool odd = rank % 2 == 1;
      const std::vector<int> members = odd ? std::vector<int>{1, 3} : std::vector<int>{0, 2};
      const auto world = rendezvous.make_group("world", everyone(4));
      const auto pair = rendezvous.make_group(odd ? "odd" : "even", members);
      InlineStream stream;
      std::vector<float> mine{static_cast<float>(rank)};
      pair->all_reduce(tensor(mine), ReduceOp::kSum, Purpose::kMetric, stream);
      CHECK_LOCKED(mine[0] == (odd ? 4.0f : 2.0f));
      world->all_reduce(tensor(mine), ReduceOp::kSum, Purpose::kMetric, stream);
      CHECK_LOCKED(mine[0] == 12.0f);
    });
  }
}

TEST_CASE("neighbours in a ring exchange more than any buffer holds, without deadlock", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    run_ranks(carrier, 3, [](Communicator& group) {
      InlineStream stream;
      const int next = (group.rank() + 1) % 3;
      const int previous = (group.rank() + 2) % 3;
      std::vector<std::vector<float>> out(12);
      std::vector<std::vector<float>> in(12);
      std::vector<P2p> messages;
      for (std::size_t i = 0; i < out.size(); ++i) {  // many messages to one peer, both ways
        out[i] = input<float>(group.rank() + static_cast<int>(i), 100'001);
        in[i].resize(100'001);
        const int to = i % 2 == 0 ? next : previous;
        const int from = i % 2 == 0 ? previous : next;
        messages.push_back({P2p::Kind::kSend, to, tensor(out[i])});
        messages.push_back({P2p::Kind::kReceive, from, tensor(in[i])});
      }
      group.exchange(messages, Purpose::kActivation, stream);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const int from = i % 2 == 0 ? previous : next;
        CHECK_LOCKED(mismatches(in[i], input<float>(from + static_cast<int>(i), 100'001)) == 0);
      }
    });
  }
}

}  // namespace
}  // namespace dstrain
