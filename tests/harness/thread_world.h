// thread_world(n, f): n ranks as n threads of this process, each with its own Rendezvous. Returns
// f's results by rank. It also proves that the engine keeps nothing in globals.
#pragma once

#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "engine/comm/rendezvous.h"
#include "tests/harness/local_rendezvous.h"

namespace dstrain::test {

/// Rethrows the failure of the lowest rank that failed for a reason of its own; a rank that only
/// lost its peer comes last.
template <typename F>
auto thread_world(std::vector<std::unique_ptr<Rendezvous>> world, F&& f) {
  using Result = std::invoke_result_t<F&, Rendezvous&>;
  std::vector<Result> results(world.size());
  std::vector<std::exception_ptr> failures(world.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          results[rank] = f(*world[rank]);
        } catch (...) {
          failures[rank] = std::current_exception();
        }
        // Done in the rank's own thread, as a process would leave: some rendezvous wait for the
        // peers then.
        world[rank].reset();
      });
    }
  }
  std::exception_ptr lost_peer;
  for (const std::exception_ptr& failure : failures) {
    if (!failure) {
      continue;
    }
    try {
      std::rethrow_exception(failure);
    } catch (const PeerLost&) {
      lost_peer = lost_peer ? lost_peer : failure;
    }
  }
  if (lost_peer) {
    std::rethrow_exception(lost_peer);
  }
  return results;
}

template <typename F>
auto thread_world(int size, F&& f) {
  return thread_world(make_local_rendezvous(size), std::forward<F>(f));
}

}  // namespace dstrain::test
