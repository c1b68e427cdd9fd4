// StatusRecorder: writes what the engine reports about this rank into the status page that the
// launcher reads. It stands here because the engine does not know the launcher, nor the launcher
// collectives.
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cmd/rank/rank_env.h"
#include "engine/comm/activity.h"
#include "launcher/supervision/status_page.h"

namespace dstrain {

class StatusRecorder final : public ActivityRecorder {
 public:
  /// Made by the thread that computes.
  explicit StatusRecorder(launcher::StatusPage page);

  int add_group(const std::string& name) override;
  void begin_collective(int group, Op op, Purpose purpose) noexcept override;
  void end_collective(int group) noexcept override;
  void begin_wait() noexcept override;
  void end_wait() noexcept override;
  void begin_phase(RunPhase phase) noexcept override;
  void finish_step(std::int64_t step) noexcept override;
  void set_comparable(int number) noexcept override;

 private:
  [[nodiscard]] bool computes() const { return std::this_thread::get_id() == computing_thread_; }

  launcher::StatusPage page_;
  const std::thread::id computing_thread_ = std::this_thread::get_id();
  std::vector<int> operations_;  ///< the page's numbers, by Op, then Purpose
};

/// The recorder of the page that this rank was given at its start; none if it was given none.
/// Throws std::system_error if there is no such page.
std::unique_ptr<StatusRecorder> make_status_recorder(const EnvironmentLookup& lookup);

}  // namespace dstrain
