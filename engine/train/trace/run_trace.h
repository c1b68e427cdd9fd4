// RunTrace: decides which steps of a run are traced, and has each rank's part written.
//
//   step          19        20  …  24        25
//   clocks              ┴              ┴              compared by all ranks
//   TraceLog            └─ recording ──┘
//   background                         └─ write ─
//
// A trace that cannot be written is a warning: it stops nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/train/trace/trace_file.h"
#include "engine/train/trace/trace_request.h"

namespace dstrain {

class RunTrace {
 public:
  /// The facts about this rank that its file tells.
  struct Rank {
    std::string host;
    std::string place;
    std::string device;
  };

  /// `log` is that of the calling thread; nullptr: nothing is ever traced, on no rank. Both must
  /// outlive it.
  RunTrace(const TraceConfig& config,
           std::filesystem::path output_dir,
           Rank rank,
           Communicator& world,
           TraceLog* log);
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;
  /// Waits for what is being written.
  ~RunTrace();

  /// Whether somebody asks for a trace that has not been begun; looks at most once a second.
  [[nodiscard]] bool is_asked();
  /// Collective: before and after each step. `asked` is what rank 0's is_asked() said in it.
  void begin_step(std::int64_t step);
  void end_step(std::int64_t step, bool asked);
  /// Collective. Ends a trace whose steps will not all come; `step` was the last.
  void end(std::int64_t step);

 private:
  struct Window {
    NumberSpan steps;
    std::vector<NumberSpan> ranks;  ///< empty: all
  };
  struct Open {
    Window window;  ///< its steps begin with the first that was traced
    ClockReading clock;
  };

  void obey_request(std::int64_t step);
  void open(const Window& window, std::int64_t step);
  void close(std::int64_t step);

  std::filesystem::path output_dir_;
  Rank rank_;
  Communicator& world_;
  TraceLog* const log_;
  std::vector<Window> windows_;
  std::optional<Open> open_;
  std::future<void> writing_;
  std::chrono::steady_clock::time_point looked_{};
};

}  // namespace dstrain
