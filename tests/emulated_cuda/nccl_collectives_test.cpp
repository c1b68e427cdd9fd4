// Every collective over NCCL, emulated or, where there are GPUs, real, against what each rank is
// known to have put in. The numbers are small integers, whose sums are exact in every dtype and
// order.
#include <cmath>
#include <mutex>

#include <catch2/catch.hpp>
#include <cuda_runtime_api.h>

#include "engine/comm/nccl_comm.h"
#include "engine/comm/nccl_notices.h"
#include "engine/comm/nccl_watchdog.h"
#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "tests/emulated_cuda/nccl_ranks.h"

namespace dstrain::test {
namespace {

std::mutex catch_mutex;  // Catch's assertions are not for several threads at once

// The checked expression may wait for other ranks, so it is computed without the lock.
#define CHECK_LOCKED(...)                          \
  do {                                             \
    const bool holds = (__VA_ARGS__);              \
    const std::lock_guard catch_lock(catch_mutex); \
    INFO(#__VA_ARGS__);                            \
    CHECK(holds);                                  \
  } while (false)

template <typename T>
T make(int value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, F16>) {
    return to_f16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}
template <typename T>
int int_of(T element) {
  if constexpr (std::is_same_v<T, BF16> || std::is_same_v<T, F16>) {
    return static_cast<int>(to_float(element));
  } else {
    return static_cast<int>(element);
  }
}

/// Values of both signs, not symmetric in the ranks.
int number(int rank, std::int64_t i) {
  return static_cast<int>((i * 7919 + rank * 104729) % 17) - 8 + rank;
}

template <typename T>
std::vector<T> input(int rank, std::int64_t elements, std::int64_t first = 0) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    values.push_back(make<T>(number(rank, first + i)));
  }
  return values;
}

template <typename T>
std::vector<int> ints(const std::vector<T>& values) {
  std::vector<int> result;
  for (const T& value : values) {
    result.push_back(int_of(value));
  }
  return result;
}

std::vector<int> reduced(int size, std::int64_t first, std::int64_t elements, ReduceOp op) {
  std::vector<int> result;
  for (std::int64_t i = first; i < first + elements; ++i) {
    int value = number(0, i);
    for (int rank = 1; rank < size; ++rank) {
      value = op == ReduceOp::kSum ? value + number(rank, i) : std::max(value, number(rank, i));
    }
    result.push_back(value);
  }
  return result;
}

template <typename T>
void check_reductions(const NcclRank& rank, std::int64_t elements, ReduceOp op) {
  const int size = rank.group.size();
  const OnGpu<T> all(rank.device, input<T>(rank.rank(), elements));
  rank.group.all_reduce(all.tensor(), op, Purpose::kGradient, rank.stream());
  CHECK_LOCKED(ints(all.values()) == reduced(size, 0, elements, op));

  const std::int64_t mine = rank.rank() * elements;
  const OnGpu<T> in(rank.device, input<T>(rank.rank(), elements * size));
  const OnGpu<T> out(rank.device, std::vector<T>(static_cast<std::size_t>(elements)));
  rank.group.reduce_scatter(in.tensor(), out.tensor(), op, Purpose::kGradient, rank.stream());
  CHECK_LOCKED(ints(out.values()) == reduced(size, mine, elements, op));
  // Into this rank's own slice of the input.
  rank.group.reduce_scatter(in.tensor(), in.tensor().flat(mine, mine + elements), op,
                            Purpose::kGradient, rank.stream());
  const std::vector<int> whole = ints(in.values());
  CHECK_LOCKED(std::vector<int>(whole.begin() + mine, whole.begin() + mine + elements) ==
               reduced(size, mine, elements, op));
}

template <typename T>
void check_movement(const NcclRank& rank, std::int64_t elements) {
  const int size = rank.group.size();
  std::vector<int> want;
  for (int peer = 0; peer < size; ++peer) {
    const std::vector<int> part = ints(input<T>(peer, elements));
    want.insert(want.end(), part.begin(), part.end());
  }
  const OnGpu<T> in(rank.device, input<T>(rank.rank(), elements));
  const OnGpu<T> out(rank.device, std::vector<T>(want.size()));
  rank.group.all_gather(in.tensor(), out.tensor(), Purpose::kParameter, rank.stream());
  CHECK_LOCKED(ints(out.values()) == want);

  std::vector<T> own_slice(want.size());
  const std::int64_t mine = rank.rank() * elements;
  const std::vector<T> own = input<T>(rank.rank(), elements);
  std::copy(own.begin(), own.end(), own_slice.begin() + mine);
  const OnGpu<T> in_place(rank.device, own_slice);
  rank.group.all_gather(in_place.tensor().flat(mine, mine + elements), in_place.tensor(),
                        Purpose::kParameter, rank.stream());
  CHECK_LOCKED(ints(in_place.values()) == want);

  for (int root = 0; root < size; ++root) {
    const OnGpu<T> values(rank.device, input<T>(rank.rank(), elements));
    rank.group.broadcast(values.tensor(), root, Purpose::kParameter, rank.stream());
    CHECK_LOCKED(ints(values.values()) == ints(input<T>(root, elements)));
  }
}

TEST_CASE("sums and maxima over NCCL are those of all ranks", "[nccl]") {
  for (const int size : {2, 3, 4}) {
    run_nccl_ranks(size, [](const NcclRank& rank) {
      for (const std::int64_t elements : {0, 1, 7, 1031}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
          check_reductions<float>(rank, elements, op);
          check_reductions<BF16>(rank, elements, op);
          check_reductions<F16>(rank, elements, op);
          check_reductions<double>(rank, elements, op);
          check_reductions<std::int32_t>(rank, elements, op);
        }
      }
    });
  }
}

TEST_CASE("gather and broadcast over NCCL deliver what was sent", "[nccl]") {
  for (const int size : {2, 3}) {
    run_nccl_ranks(size, [](const NcclRank& rank) {
      for (const std::int64_t elements : {0, 1, 7, 1031}) {
        check_movement<float>(rank, elements);
        check_movement<BF16>(rank, elements);
        check_movement<F16>(rank, elements);
        check_movement<std::int32_t>(rank, elements);
      }
      rank.group.barrier();
    });
  }
}

TEST_CASE("neighbours in a ring exchange many messages over NCCL, in order", "[nccl]") {
  run_nccl_ranks(3, [](const NcclRank& rank) {
    const int next = (rank.rank() + 1) % 3;
    const int previous = (rank.rank() + 2) % 3;
    std::vector<OnGpu<float>> out;
    std::vector<OnGpu<float>> in;
    std::vector<P2p> messages;
    for (int i = 0; i < 12; ++i) {  // both ways; of several sizes, one of them nothing
      out.emplace_back(rank.device, input<float>(rank.rank() + i, 101 * (i / 2)));
      in.emplace_back(rank.device, std::vector<float>(static_cast<std::size_t>(101 * (i / 2))));
    }
    for (std::size_t i = 0; i < 12; ++i) {
      const bool forth = i % 2 == 0;
      messages.push_back({P2p::Kind::kSend, forth ? next : previous, out[i].tensor()});
      messages.push_back({P2p::Kind::kReceive, forth ? previous : next, in[i].tensor()});
    }
    rank.group.exchange(messages, Purpose::kActivation, rank.stream());
    for (int i = 0; i < 12; ++i) {
      const int from = i % 2 == 0 ? previous : next;
      CHECK_LOCKED(ints(in[static_cast<std::size_t>(i)].values()) ==
                   ints(input<float>(from + i, 101 * (i / 2))));
    }
  });
}

TEST_CASE("all_to_all over NCCL delivers parts of unequal sizes", "[nccl]") {
  run_nccl_ranks(3, [](const NcclRank& rank) {
    // The last round gives and takes nothing on ranks 0 and 1: it is a call of rank 2 alone with
    // itself, and still one of the whole group.
    for (const int round : {1, 5, 400, 0}) {
      const auto part = [&](int from, int to) {
        const int own = from == 2 && to == 2 ? 2 : 0;
        return input<BF16>(16 * from + to, (from * 7 + to * 3) % 5 * round + own);
      };
      std::vector<BF16> in;
      std::vector<BF16> want;
      std::vector<std::int64_t> sent;
      std::vector<std::int64_t> received;
      for (int peer = 0; peer < 3; ++peer) {
        const std::vector<BF16> given = part(rank.rank(), peer);
        const std::vector<BF16> taken = part(peer, rank.rank());
        in.insert(in.end(), given.begin(), given.end());
        want.insert(want.end(), taken.begin(), taken.end());
        sent.push_back(static_cast<std::int64_t>(given.size()));
        received.push_back(static_cast<std::int64_t>(taken.size()));
      }
      const OnGpu<BF16> from(rank.device, in);
      const OnGpu<BF16> to(rank.device, std::vector<BF16>(want.size()));
      rank.group.all_to_all(from.tensor(), sent, to.tensor(), received, Purpose::kActivation,
                            rank.stream());
      CHECK_LOCKED(ints(to.values()) == ints(want));
    }
    rank.group.barrier();
  });
}

TEST_CASE("an exchange between two ranks of three does not concern the third", "[nccl]") {
  run_nccl_ranks(3, [](const NcclRank& rank) {
    const OnGpu<std::int32_t> values(rank.device, {10 * rank.rank(), 0});
    if (rank.rank() < 2) {
      const std::vector<P2p> messages{
          {P2p::Kind::kSend, 1 - rank.rank(), values.tensor().flat(0, 1)},
          {P2p::Kind::kReceive, 1 - rank.rank(), values.tensor().flat(1, 2)}};
      rank.group.exchange(messages, Purpose::kActivation, rank.stream());
      CHECK_LOCKED(values.values()[1] == 10 * (1 - rank.rank()));
    }
    rank.group.all_reduce(values.tensor(), ReduceOp::kMax, Purpose::kControl, rank.stream());
    CHECK_LOCKED(values.values()[0] == 20);
  });
}

TEST_CASE("a collective over NCCL waits for its stream, and what follows waits for it", "[nccl]") {
  run_nccl_ranks(2, [](const NcclRank& rank) {
    const std::unique_ptr<Stream> side = rank.device.make_side_stream("communication");
    const OnGpu<float> zeros(rank.device, std::vector<float>(1000));
    std::vector<float> host(1000, static_cast<float>(rank.rank() + 1));
    std::vector<float> result(1000);
    for (int round = 0; round < 20; ++round) {
      Stream& compute = rank.stream();
      rank.device.copy_from_host(host.data(), zeros.tensor(), compute);
      side->wait(compute.record());
      rank.group.all_reduce(zeros.tensor(), ReduceOp::kSum, Purpose::kGradient, *side);
      compute.wait(side->record());
      rank.device.copy_to_host(zeros.tensor(), result.data(), compute);
      compute.synchronize();
      CHECK_LOCKED(result == std::vector<float>(1000, 3.0F));
    }
  });
}

TEST_CASE("a barrier over NCCL lets nobody go before all have come", "[nccl]") {
  std::atomic<int> arrived{0};
  run_nccl_ranks(3, [&](const NcclRank& rank) {
    for (int round = 1; round <= 5; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds{7 * rank.rank()});
      ++arrived;
      rank.group.barrier();
      CHECK_LOCKED(arrived >= 3 * round);
      rank.group.barrier();
    }
  });
}

TEST_CASE("a group of one over NCCL needs nobody", "[nccl]") {
  if (!has_gpus(1)) {
    return;
  }
  const auto store = make_memory_store();
  const Backend backend = make_cuda_backend(0);
  const auto group = make_nccl_communicator({.name = "alone", .members = {3}, .rank = 0}, *store,
                                            *backend.device, patient());
  CHECK(group->size() == 1);
  CHECK(group->name() == "alone");
  group->barrier();
}

TEST_CASE("NCCL is given tensors that fit, on a GPU's stream", "[nccl]") {
  const Backend processor = make_cpu_backend(1);
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const OnGpu<float> three(rank.device, std::vector<float>(3));
    const OnGpu<std::uint8_t> bytes(rank.device, std::vector<std::uint8_t>(3));
    const auto thrown_by = [](const std::function<void()>& body) {
      return thrown<InternalError>(body);
    };
    const std::string scattered = thrown_by([&] {
      rank.group.reduce_scatter(three.tensor(), three.tensor().flat(0, 1), ReduceOp::kSum,
                                Purpose::kGradient, rank.stream());
    });
    const std::string rooted = thrown_by(
        [&] { rank.group.broadcast(three.tensor(), 2, Purpose::kParameter, rank.stream()); });
    const std::string of_bytes = thrown_by([&] {
      rank.group.all_reduce(bytes.tensor(), ReduceOp::kSum, Purpose::kGradient, rank.stream());
    });
    const std::string to_itself = thrown_by([&] {
      const std::vector<P2p> messages{{P2p::Kind::kSend, rank.rank(), three.tensor()}};
      rank.group.exchange(messages, Purpose::kActivation, rank.stream());
    });
    const std::string on_processor = thrown_by([&] {
      rank.group.all_reduce(three.tensor(), ReduceOp::kSum, Purpose::kGradient,
                            processor.device->compute_stream());
    });
    CHECK_LOCKED(scattered.find("must be 2 times the output") != std::string::npos);
    CHECK_LOCKED(rooted.find("broadcast from rank 2 of a group of 2") != std::string::npos);
    CHECK_LOCKED(of_bytes.find("all_reduce of u8") != std::string::npos);
    CHECK_LOCKED(to_itself.find("exchange with rank") != std::string::npos);
    CHECK_LOCKED(on_processor.find("a stream that is not of CUDA") != std::string::npos);
    rank.group.barrier();  // none of that has harmed the group
  });
}

TEST_CASE("NCCL takes work of one rank alone, watched over, and is left in peace", "[nccl]") {
  if (!has_gpus(1)) {
    return;
  }
  const auto store = make_memory_store();
  const Backend backend = make_cuda_backend(0);
  auto& device = dynamic_cast<CudaDevice&>(*backend.device);
  const NcclGroup group{.name = "alone", .members = {0}, .rank = 0};
  NcclNotices notices(*store, group);
  const cudaStream_t stream = handle_of(device.compute_stream());
  NcclComm comm(open_nccl(), group, notices, patient().connect_timeout);
  NcclWatchdog watchdog(comm, notices, device, group, patient());
  const OnGpu<float> in(device, {1.0F, 2.0F, 3.0F});
  const OnGpu<float> out(device, std::vector<float>(3));
  const Call call{.op = Op::kAllReduce, .dtype = DType::kF32, .elements = 3};
  NcclWatchdog::Collective& collective = watchdog.begin(call, stream);
  const ncclResult_t status = comm.enqueue([&](ncclComm_t handle) {
    return comm.nccl().all_reduce(in.tensor().data(), out.tensor().data(), 3, ncclFloat32, ncclSum,
                                  handle, stream);
  });
  REQUIRE(status == ncclSuccess);
  watchdog.finish(collective, stream);
  CHECK(out.values() == std::vector<float>{1.0F, 2.0F, 3.0F});
  CHECK(watchdog.stop());
  CHECK(watchdog.is_idle());
  CHECK(comm.leave(notices, patient().connect_timeout));
}

}  // namespace
}  // namespace dstrain::test
