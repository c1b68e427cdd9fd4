// PrepareHooks: how prepare_data reports its progress, and how it is stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace dstrain {

/// Reports how far it is. It is called often, and the callee decides what to show.
struct PrepareProgress {
  enum class Phase : std::uint8_t {
    kFinding,
    kTraining,  ///< a SentencePiece model
    kCounting,  ///< pieces of text, for byte-level BPE
    kMerging,   ///< … their pairs
    kChecking,
    kEncoding,
    kFinishing
  };
  Phase phase = Phase::kFinding;
  std::int64_t bytes_done = 0;    ///< of the files on the disk, so compressed ones count as such
  std::int64_t bytes_before = 0;  ///< of these, how many an interrupted call had done
  std::int64_t bytes_total = 0;
  std::int64_t files_done = 0;
  std::int64_t files_total = 0;
  std::int64_t tokens_done = 0;  ///< of a vocabulary that is being made
  std::int64_t tokens_total = 0;
};

struct PrepareHooks {
  std::function<void(const PrepareProgress&)> on_progress = [](const PrepareProgress&) {};
  std::function<bool()> stop_requested = [] { return false; };
  std::chrono::milliseconds save_interval{10'000};  ///< how much work an interruption may cost
};

}  // namespace dstrain
