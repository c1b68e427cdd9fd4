// What the tests of engine/comm share: ranks as threads, over each kind of rendezvous, and inputs
// that every rank can compute for every other.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/staged_communicator.h"
#include "kernels/backend.h"
#include "tests/harness/inline_stream.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/harness/wire_here.h"

namespace dstrain {

/// kHosts: two ranks a host, which share memory, and TCP between hosts. kStaged: over the local
/// one, on a device whose memory is the host's, in chunks of a few elements.
enum class Carrier { kLocal, kShared, kUnix, kTcp, kEncryptedTcp, kHosts, kStaged };

inline const char* name_of(Carrier carrier) {
  switch (carrier) {
    case Carrier::kLocal:
      return "local";
    case Carrier::kShared:
      return "shared memory";
    case Carrier::kUnix:
      return "unix";
    case Carrier::kTcp:
      return "tcp";
    case Carrier::kEncryptedTcp:
      return "encrypted tcp";
    case Carrier::kHosts:
      return "two ranks a host";
    case Carrier::kStaged:
      return "staged";
  }
  return "?";
}

/// The options of the carriers between processes.
inline WireOptions wire_of(Carrier carrier) {
  const bool shares = carrier == Carrier::kShared || carrier == Carrier::kHosts;
  const HostPath path = shares                      ? HostPath::kSharedMemory
                        : carrier == Carrier::kUnix ? HostPath::kUnixSocket
                                                    : HostPath::kTcp;
  return wire_here(path, carrier == Carrier::kEncryptedTcp ? WireSecurity::kEncrypted
                                                           : WireSecurity::kAuthenticated);
}

inline std::vector<int> everyone(int size) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

/// Runs `body(rank)` in one thread a rank; rethrows the first rank's exception.
inline void run_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
  }
}

/// Runs `body` on a group of ranks that each think themselves on the host of their number.
inline void run_on_hosts(const std::vector<int>& hosts,
                         const WireOptions& wire,
                         const std::function<void(Communicator&)>& body,
                         std::chrono::milliseconds timeout = std::chrono::milliseconds{20'000}) {
  const int size = static_cast<int>(hosts.size());
  const auto store = make_memory_store();
  run_threads(size, [&](int rank) {
    WireOptions mine = wire;
    mine.host = hosts[static_cast<std::size_t>(rank)];
    const auto rendezvous = make_process_rendezvous(
        rank, size, *store, {.wire = mine, .timeout = timeout, .connect_timeout = timeout});
    const auto group = rendezvous->make_group("world", everyone(size));
    body(*group);
  });
}

/// Runs `body` on a group of the whole world, one thread a rank.
inline void run_ranks(Carrier carrier,
                      int size,
                      const std::function<void(Communicator&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::milliseconds{20'000}) {
  const std::vector<int> members = everyone(size);
  if (carrier == Carrier::kLocal || carrier == Carrier::kStaged) {
    const auto ranks = make_local_rendezvous(size, timeout);
    run_threads(size, [&](int rank) {
      const Backend backend = make_cpu_backend(1);
      auto group = ranks[static_cast<std::size_t>(rank)]->make_group("world", members);
      if (carrier == Carrier::kStaged && size > 1) {
        constexpr std::int64_t kChunkBytes = 4000;
        group = make_staged_communicator(
            std::move(group), std::make_shared<StagingMemory>(*backend.device, kChunkBytes));
      }
      body(*group);
    });
    return;
  }
  std::vector<int> hosts(static_cast<std::size_t>(size), 0);
  for (int rank = 0; carrier == Carrier::kHosts && rank < size; ++rank) {
    hosts[static_cast<std::size_t>(rank)] = rank / 2;
  }
  run_on_hosts(hosts, wire_of(carrier), body, timeout);
}

/// The text of the exception that `body` threw; "" if it threw none of that type.
template <typename Exception, typename Body>
std::string thrown(Body&& body) {
  try {
    body();
  } catch (const Exception& failure) {
    return failure.what();
  }
  return "";
}

/// Element i of rank r's input: small, of both signs, not symmetric in the ranks.
inline double sample(int rank, std::int64_t i) {
  return static_cast<double>((i * 7919 + rank * 104729) % 2003) / 64.0 - 11.0 * (rank + 1);
}

}  // namespace dstrain
