// StreamedUpdate: the optimizer's work where masters and moments lie in the host's memory or on a
// disk, and the model computes elsewhere. It goes window by window (StateWindows), on a thread of
// its own: while one is updated, the next are read or brought down and the last are written or
// brought up, and the model's next forward is already on its way: it waits for a unit only when it
// comes to it. Each element is updated from the same numbers as without, so not a bit differs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/parallel/data_parallel.h"
#include "engine/runtime/disk/disk_queue.h"

namespace dstrain {

/// The part of one unit that this rank updates.
struct OwnedRange {
  Range range;  ///< as UnitState's
  std::uint32_t noise_key = 0;
};

class StreamedUpdate {
 public:
  /// `owned`: of the units whose states lie elsewhere, which are the first. What `parts` refers to
  /// outlives this.
  StreamedUpdate(const DataParallelParts& parts, std::vector<OwnedRange> owned);
  StreamedUpdate(const StreamedUpdate&) = delete;
  StreamedUpdate& operator=(const StreamedUpdate&) = delete;
  ~StreamedUpdate();

  /// Begins the update of all these units, whose gradients are complete and stay as they are until
  /// their units are.
  void update(const UpdateParams& params);
  /// The same for parameters that are to become what their masters round to.
  void refresh_parameters();
  /// Makes later work on `stream` find what this rank owns of the unit's parameters updated.
  void order_after(int unit, Stream& stream) const;
  /// The point after which the unit's parameters are where they belong, but for a device's.
  [[nodiscard]] const Event& updated(int unit) const {
    return updated_[static_cast<std::size_t>(unit)];
  }
  [[nodiscard]] std::optional<OffloadedUpdate> last() const;

 private:
  /// The part of one unit that lies in a window: elements of the unit, and their place in the
  /// window.
  struct Part {
    int unit = 0;
    Range of_unit;
    std::int64_t begin = 0;  ///< in the window
  };
  enum class Pass : std::uint8_t { kUpdate, kRefresh };

  void go_over_windows(Pass pass, const UpdateParams& params);
  void work_on(std::int64_t window, Pass pass, const UpdateParams& params);
  void update_part(std::int64_t window,
                   const Part& part,
                   Tensor master,
                   Tensor rounded,
                   const UpdateParams& params);
  void fetch(std::int64_t window, Pass pass);
  void wait_until_fetched(std::int64_t window);
  void put_back(std::int64_t window, Pass pass);
  void note_updated(std::int64_t window);
  void note_end();
  [[nodiscard]] Tensor of_window(std::int64_t window, WindowTensor tensor) const;
  [[nodiscard]] Tensor in_window(WindowTensor tensor, std::int64_t window, const Part& part) const;
  [[nodiscard]] Tensor state(RegionKind kind,
                             WindowTensor passing,
                             std::int64_t window,
                             const Part& part) const;
  [[nodiscard]] Tensor gradient(const Part& part) const;
  [[nodiscard]] Tensor parameters(const Part& part) const;
  template <typename Visit>
  void for_each_on_disk(std::int64_t window, Pass pass, Visit&& visit) const;
  template <typename Visit>
  void visit_on_disk(std::int64_t window,
                     RegionKind kind,
                     WindowTensor tensor,
                     Visit&& visit) const;

  /// The transfers that are under way in one slot.
  struct Slot {
    std::vector<DiskQueue::Ticket> transfers;  ///< reads, later writes
    DiskQueue::Ticket parameters = 0;          ///< the write of a window's, where they lie there
    Event down;
    Event up;
  };

  DataParallelParts parts_;
  const StateWindows& windows_;
  std::vector<OwnedRange> owned_;
  Site site_;          // whose stream all windows are worked on
  CallerStream here_;  // for operations of such work
  DiskDevice* disk_;   // nullptr: nothing is on a disk
  bool parameters_on_disk_;
  std::unique_ptr<Stream> down_;  // nullptr, as the next: nothing crosses to a device
  std::unique_ptr<Stream> up_;
  std::vector<std::vector<Part>> of_windows_;
  std::vector<std::int64_t> last_window_;  // by unit; -1: this rank owns nothing of it
  std::vector<Slot> slots_;
  std::vector<Event> updated_;     // by unit, on the site's stream
  std::vector<Event> brought_up_;  // by unit, valid once `updated_` has passed
  std::chrono::steady_clock::time_point began_;
  std::int64_t read_before_ = 0;  // bytes of the disk, as the next
  std::int64_t written_before_ = 0;
  mutable std::mutex mutex_;  // of `last_`
  std::optional<OffloadedUpdate> last_;
};

}  // namespace dstrain
