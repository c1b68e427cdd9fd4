// Runs an event loop until a condition holds.
#pragma once

#include <chrono>

#include <asio.hpp>

namespace dstrain::launcher {

/// Runs the loop until `done()` holds, at most for the time given. Returns whether it holds.
template <typename Condition>
bool run_until(asio::io_context& loop,
               const Condition& done,
               std::chrono::milliseconds patience = std::chrono::hours{1}) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  loop.restart();
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    if (loop.run_one_until(deadline) == 0) break;
  }
  return done();
}

}  // namespace dstrain::launcher
