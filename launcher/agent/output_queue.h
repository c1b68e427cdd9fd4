// OutputQueue: what an agent has to say and could not say yet, over a channel that may be slower
// than its ranks. No rank ever waits: each stream of each rank has a bounded buffer, and what comes
// while it is full is dropped in whole lines, which are counted and reported in their place.
//
// The agent's own words (heartbeats, answers) go before output; the ranks take turns; what is said
// of one rank keeps its order, so that its end comes after its last output.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "launcher/agent/agent_protocol.h"

namespace dstrain::launcher {

class OutputQueue {
 public:
  explicit OutputQueue(std::size_t bytes_a_stream) : bytes_a_stream_(bytes_a_stream) {}

  /// Queues a message that goes before everything else.
  void say(const FromAgent& message);
  /// Queues a message that goes behind everything else of that rank.
  void say_of_rank(std::int32_t rank, const FromAgent& message);
  void output(std::int32_t rank, bool is_stderr, std::string_view bytes);

  /// The next frames, about 256 KiB at most; empty if there is nothing to say.
  std::string take();
  [[nodiscard]] bool empty() const;
  /// Whether something that say() was given still waits.
  [[nodiscard]] bool has_urgent() const { return !urgent_.empty(); }

 private:
  struct Stream {
    std::size_t queued = 0;
    bool in_line = false;      ///< the last queued line has no end yet
    bool is_dropping = false;  ///< the rest of the current line is dropped
  };
  struct Rank {
    std::deque<FromAgent> messages;
    std::array<Stream, 2> streams;  // stdout, stderr
    std::int64_t dropped_bytes = 0;
    std::int64_t dropped_lines = 0;
    [[nodiscard]] bool empty() const { return messages.empty() && dropped_bytes == 0; }
  };

  static void append(Rank& rank, std::int32_t number, bool is_stderr, std::string_view bytes);
  static void report_dropped(Rank& rank, std::int32_t number);
  static void drop(Rank& rank, std::string_view bytes);

  const std::size_t bytes_a_stream_;
  std::string urgent_;  // frames
  std::map<std::int32_t, Rank> ranks_;
  std::int32_t last_turn_ = -1;
};

}  // namespace dstrain::launcher
