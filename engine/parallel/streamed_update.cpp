#include "engine/parallel/streamed_update.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

struct StateRegion {
  RegionKind kind;
  WindowTensor passing;
};
constexpr std::array kStateRegions = {
    StateRegion{RegionKind::kMaster, WindowTensor::kMaster},
    StateRegion{RegionKind::kFirstMoment, WindowTensor::kFirstMoment},
    StateRegion{RegionKind::kSecondMoment, WindowTensor::kSecondMoment}};

}  // namespace

StreamedUpdate::StreamedUpdate(const DataParallelParts& parts, std::vector<OwnedRange> owned)
    : parts_(parts),
      windows_(parts.memory.windows()),
      owned_(std::move(owned)),
      site_(parts.context.site(parts.memory.placement().states.space)),
      disk_(site_.disk),
      parameters_on_disk_(parts.memory.placement().parameters.space == Space::kDisk),
      of_windows_(static_cast<std::size_t>(windows_.count())),
      slots_(static_cast<std::size_t>(windows_.slots())),
      updated_(owned_.size()),
      brought_up_(owned_.size()) {
  if (windows_.passing(WindowTensor::kGradient)) {
    down_ = parts.context.device.make_side_stream("gradients down");
  }
  if (down_ != nullptr && !parts.memory.parameters_are_apart()) {
    up_ = parts.context.device.make_side_stream("parameters up");
  }
  std::int64_t row = 0;  // of all units
  for (int unit = 0; unit < static_cast<int>(owned_.size()); ++unit) {
    const std::int64_t numel = owned_[static_cast<std::size_t>(unit)].range.size();
    const Range owns = parts.memory.owned(unit);
    std::int64_t last = -1;
    for (std::int64_t done = 0; done < numel;) {
      const std::int64_t window = (row + done) / windows_.size();
      const std::int64_t until = std::min(numel, windows_.end(window) - row);
      of_windows_[static_cast<std::size_t>(window)].push_back(
          {.unit = unit,
           .of_unit = {owns.begin + done, owns.begin + until},
           .begin = row + done - windows_.begin(window)});
      done = until;
      last = window;
    }
    last_window_.push_back(last);
    row += owns.size();
  }
}

/// Waits for what is still under way, since it uses what is about to be destroyed. A failure in it
/// has been reported elsewhere, or comes too late to matter.
StreamedUpdate::~StreamedUpdate() {
  for (Stream* const stream : {&site_.stream, down_.get(), up_.get()}) {
    try {
      if (stream != nullptr) stream->synchronize();
    } catch (const std::exception&) {
      continue;
    }
  }
  if (disk_ != nullptr) {
    disk_->queue().drain();
  }
}

void StreamedUpdate::update(const UpdateParams& params) {
  go_over_windows(Pass::kUpdate, params);
}

void StreamedUpdate::refresh_parameters() {
  if (parts_.memory.has(RegionKind::kMaster)) {
    go_over_windows(Pass::kRefresh, {});
  }
}

void StreamedUpdate::order_after(int unit, Stream& stream) const {
  if (!parts_.memory.states_are_apart(unit)) {
    return;
  }
  const Event& updated = updated_[static_cast<std::size_t>(unit)];
  if (updated.stream == nullptr) {
    return;
  }
  if (down_ == nullptr) {
    stream.wait(updated);
    return;
  }
  updated.stream->wait_until(updated.ticket);
  stream.wait(brought_up_[static_cast<std::size_t>(unit)]);  // of no stream if it is not
}

void StreamedUpdate::go_over_windows(Pass pass, const UpdateParams& params) {
  for (Stream* const stream : {down_.get(), up_.get()}) {
    if (stream != nullptr) stream->wait(parts_.context.compute.record());
  }
  for (std::int64_t window = 0; window < windows_.count(); ++window) {
    site_.stream.enqueue([this, window, pass, params] { work_on(window, pass, params); });
    if (!parameters_on_disk_) {
      note_updated(window);
    } else if (window > 0) {
      note_updated(window - 1);  // which are on the disk when this window is done
    }
  }
  if (parameters_on_disk_ && windows_.count() > 0) {
    note_updated(windows_.count() - 1);
  }
}

void StreamedUpdate::note_updated(std::int64_t window) {
  for (const Part& part : of_windows_[static_cast<std::size_t>(window)]) {
    const auto unit = static_cast<std::size_t>(part.unit);
    if (last_window_[unit] == window) {
      updated_[unit] = site_.stream.record();
    }
  }
}

/// With 4 slots two windows are read ahead, and two may still be written.
void StreamedUpdate::work_on(std::int64_t window, Pass pass, const UpdateParams& params) {
  if (window == 0) {
    began_ = std::chrono::steady_clock::now();
    read_before_ = disk_ == nullptr ? 0 : disk_->queue().bytes_read();
    written_before_ = disk_ == nullptr ? 0 : disk_->queue().bytes_written();
  }
  const std::int64_t ahead = windows_.slots() / 2;
  for (std::int64_t first = 0; window == 0 && first < std::min(ahead, windows_.count()); ++first) {
    fetch(first, pass);
  }
  if (window + ahead < windows_.count()) {
    fetch(window + ahead, pass);
  }
  wait_until_fetched(window);
  for (const Part& part : of_windows_[static_cast<std::size_t>(window)]) {
    const Tensor master = windows_.passing(WindowTensor::kMaster)
                              ? in_window(WindowTensor::kMaster, window, part)
                          : parts_.memory.has(RegionKind::kMaster)
                              ? state(RegionKind::kMaster, WindowTensor::kMaster, window, part)
                              : parameters(part);
    Tensor rounded;
    if (master.dtype() != parts_.memory.options().compute_dtype) {
      rounded = windows_.passing(WindowTensor::kParameters)
                    ? in_window(WindowTensor::kParameters, window, part)
                    : parameters(part);
    }
    if (pass == Pass::kUpdate) {
      update_part(window, part, master, rounded, params);
    } else if (!rounded.empty()) {
      site_.ops.cast(master, rounded, here_);
    }
    if (up_ != nullptr) {
      const ConstTensor from = rounded.empty() ? master : rounded;
      parts_.context.device.copy_from_host(from.data(), parameters(part), *up_);
      brought_up_[static_cast<std::size_t>(part.unit)] = up_->record();
    }
  }
  put_back(window, pass);
  if (parameters_on_disk_ && window > 0) {
    disk_->queue().wait(
        slots_[static_cast<std::size_t>((window - 1) % windows_.slots())].parameters);
  }
}

void StreamedUpdate::update_part(std::int64_t window,
                                 const Part& part,
                                 Tensor master,
                                 Tensor rounded,
                                 const UpdateParams& params) {
  const Site here{.ops = site_.ops, .device = site_.device, .stream = here_, .arena = site_.arena};
  const UnitState unit{
      .unit = part.unit,
      .range = part.of_unit,
      .gradient = windows_.passing(WindowTensor::kGradient)
                      ? in_window(WindowTensor::kGradient, window, part)
                      : gradient(part),
      .master = master,
      .first_moment = state(RegionKind::kFirstMoment, WindowTensor::kFirstMoment, window, part),
      .second_moment = state(RegionKind::kSecondMoment, WindowTensor::kSecondMoment, window, part),
      .parameters = rounded,
      .noise_key = owned_[static_cast<std::size_t>(part.unit)].noise_key};
  parts_.optimizer.update(here, {&unit, 1}, params, [](std::size_t) {});
}

/// Calls visit(region's part of the window, the window's memory) for what is on the disk.
template <typename Visit>
void StreamedUpdate::for_each_on_disk(std::int64_t window, Pass pass, Visit&& visit) const {
  for (const StateRegion& region : kStateRegions) {
    if (!windows_.passing(region.passing)) continue;
    if (pass == Pass::kRefresh && region.kind != RegionKind::kMaster) continue;
    const bool is_there = parts_.memory.has(region.kind);  // else parameters are their own master
    visit_on_disk(window, is_there ? region.kind : RegionKind::kParameters, region.passing, visit);
  }
}

/// The same for one region.
template <typename Visit>
void StreamedUpdate::visit_on_disk(std::int64_t window,
                                   RegionKind kind,
                                   WindowTensor tensor,
                                   Visit&& visit) const {
  const std::int64_t count = windows_.end(window) - windows_.begin(window);
  const Tensor memory = of_window(window, tensor);
  const std::int64_t element = size_of(memory.dtype());
  // All of a region's units lie one after the other, from its beginning on.
  const std::int64_t begin = disk_->offset_of(parts_.context.arena.unit(kind, 0).data());
  visit(begin + windows_.begin(window) * element, memory.data(),
        (count * element + kDiskBlockBytes - 1) / kDiskBlockBytes * kDiskBlockBytes);
}

void StreamedUpdate::fetch(std::int64_t window, Pass pass) {
  Slot& slot = slots_[static_cast<std::size_t>(window % windows_.slots())];
  if (disk_ != nullptr) {
    for (const DiskQueue::Ticket written : slot.transfers) {
      disk_->queue().wait(written);
    }
    slot.transfers.clear();
    for_each_on_disk(window, pass, [&](std::int64_t offset, void* memory, std::int64_t bytes) {
      slot.transfers.push_back(disk_->queue().read(offset, memory, bytes));
    });
  }
  if (down_ != nullptr) {
    if (slot.up.stream != nullptr) slot.up.stream->wait_until(slot.up.ticket);
    if (pass == Pass::kUpdate) {
      for (const Part& part : of_windows_[static_cast<std::size_t>(window)]) {
        parts_.context.device.copy_to_host(
            gradient(part), in_window(WindowTensor::kGradient, window, part).data(), *down_);
      }
    }
    slot.down = down_->record();
  }
}

void StreamedUpdate::wait_until_fetched(std::int64_t window) {
  Slot& slot = slots_[static_cast<std::size_t>(window % windows_.slots())];
  if (disk_ != nullptr) {
    for (const DiskQueue::Ticket read : slot.transfers) {
      disk_->queue().wait(read);
    }
    slot.transfers.clear();
  }
  if (down_ != nullptr) {
    down_->wait_until(slot.down.ticket);
  }
}

/// After the last window nothing is under way any more, so that what follows on the stream may use
/// the slots' memory, and finds parameters where they belong.
void StreamedUpdate::put_back(std::int64_t window, Pass pass) {
  Slot& slot = slots_[static_cast<std::size_t>(window % windows_.slots())];
  const auto write = [&](std::int64_t offset, void* memory, std::int64_t bytes) {
    slot.transfers.push_back(disk_->queue().write(offset, memory, bytes));
  };
  if (parameters_on_disk_ && windows_.passing(WindowTensor::kParameters)) {
    visit_on_disk(window, RegionKind::kParameters, WindowTensor::kParameters, write);
    slot.parameters = slot.transfers.back();
  }
  if (disk_ != nullptr && pass == Pass::kUpdate) {
    for_each_on_disk(window, pass, write);
    // The first region is that of masters, which parameters without one are.
    if (!windows_.passing(WindowTensor::kParameters) && parameters_on_disk_) {
      slot.parameters = slot.transfers.front();
    }
  }
  if (up_ != nullptr) {
    slot.up = up_->record();
  }
  if (window + 1 == windows_.count()) {
    if (disk_ != nullptr) disk_->queue().wait_for_all();
    if (up_ != nullptr) up_->wait_until(slot.up.ticket);
    if (pass == Pass::kUpdate) note_end();
  }
}

void StreamedUpdate::note_end() {
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began_;
  OffloadedUpdate update{.seconds = taken.count()};
  if (disk_ != nullptr) {
    update.disk_bytes_read = disk_->queue().bytes_read() - read_before_;
    update.disk_bytes_written = disk_->queue().bytes_written() - written_before_;
  }
  const std::lock_guard lock(mutex_);
  last_ = update;
}

std::optional<OffloadedUpdate> StreamedUpdate::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

/// The bytes beyond the last element are the region's own padding, which goes to the disk and back.
Tensor StreamedUpdate::of_window(std::int64_t window, WindowTensor tensor) const {
  auto* const memory = static_cast<std::byte*>(parts_.context.arena.state_windows().data());
  return {memory + windows_.offset_bytes(window, tensor), *windows_.passing(tensor),
          Shape{windows_.size()}};
}

Tensor StreamedUpdate::in_window(WindowTensor tensor, std::int64_t window, const Part& part) const {
  return of_window(window, tensor).flat(part.begin, part.begin + part.of_unit.size());
}

/// Part of a state, in the window's memory or in place; empty where there is no such state.
Tensor StreamedUpdate::state(RegionKind kind,
                             WindowTensor passing,
                             std::int64_t window,
                             const Part& part) const {
  if (!parts_.memory.has(kind)) {
    return {};
  }
  if (windows_.passing(passing)) {
    return in_window(passing, window, part);
  }
  const std::int64_t first = parts_.memory.place(kind, part.unit).held.begin;
  return parts_.context.arena.unit(kind, part.unit)
      .flat(part.of_unit.begin - first, part.of_unit.end - first);
}

Tensor StreamedUpdate::gradient(const Part& part) const {
  const std::int64_t first = parts_.memory.place(RegionKind::kGradients, part.unit).held.begin;
  return parts_.context.arena.unit(RegionKind::kGradients, part.unit)
      .flat(part.of_unit.begin - first, part.of_unit.end - first);
}

Tensor StreamedUpdate::parameters(const Part& part) const {
  const std::int64_t first = parts_.memory.owned(part.unit).begin;
  return parts_.context.arena.owned_parameters(part.unit).flat(part.of_unit.begin - first,
                                                               part.of_unit.end - first);
}

}  // namespace dstrain
