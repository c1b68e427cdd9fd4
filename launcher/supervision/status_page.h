// StatusPage: one page of memory that a rank shares with the process that started it. The rank says
// there what it does, with plain stores; so what a rank was doing can be read even if it is
// stopped, or loops for ever.
//
// The process that starts a rank creates the page (a memfd), passes it on as an open file, and
// names its number in DSTRAIN_STATUS_FD. Both ends are the same build; the page begins with a
// version that a reader checks. Times are those of CLOCK_MONOTONIC of the one host that both ends
// are on.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/base/file_descriptor.h"
#include "launcher/supervision/rank_status.h"

namespace dstrain::launcher {

constexpr const char* kStatusPageVariable = "DSTRAIN_STATUS_FD";

/// The contents of the page (status_page.cpp).
struct StatusLayout;

class StatusPage {
 public:
  /// Makes a new, empty page, to which no rank has attached. Throws std::system_error.
  static StatusPage make();
  /// Opens the page behind a descriptor, which it takes over and keeps from being inherited
  /// further. Throws std::system_error, naming the descriptor, if there is no page behind it.
  static StatusPage open(FileDescriptor file);
  StatusPage(StatusPage&& other) noexcept;
  StatusPage& operator=(StatusPage&&) = delete;
  ~StatusPage();

  [[nodiscard]] int fd() const { return file_.get(); }

  // The starter's side.

  /// Everything but RankStatus::process; nothing as long as no rank has attached.
  [[nodiscard]] std::optional<RankStatus> read() const;

  // The rank's side. All of these but the two below are called by one thread, the one that
  // computes.

  /// Makes the page readable from now on. It begins with RankPhase::kStarting.
  void attach();
  /// Both give the number by which they are called below; -1 where the page is full, which the
  /// calls below take as nothing to say. Names that are too long are cut.
  int add_group(std::string_view name);
  int add_operation(std::string_view name);
  void begin_phase(RankPhase phase) noexcept;
  void finish_step(std::int64_t step) noexcept;
  void begin_wait() noexcept;
  void end_wait() noexcept;
  void set_comparable(int number) noexcept;

  /// May be called from any thread, by one at a time for each group.
  void begin_operation(int group, int operation) noexcept;
  void end_operation(int group) noexcept;

 private:
  explicit StatusPage(FileDescriptor file);

  FileDescriptor file_;
  StatusLayout* page_ = nullptr;
  // The rank's side: since when the step counts, and how much of it was waiting.
  std::int64_t step_began_ = 0;
  std::int64_t waited_ = 0;
  int waits_ = 0;  ///< nested
};

}  // namespace dstrain::launcher
