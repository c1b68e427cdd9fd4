// Running an event loop until something has come about.
#pragma once

#include <chrono>

#include <asio.hpp>

namespace dstrain::launcher {

/// Runs the loop until `done()`, for so long at most. Returns whether it is.
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
