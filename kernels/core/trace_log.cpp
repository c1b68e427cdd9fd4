#include "kernels/core/trace_log.h"

#include <algorithm>
#include <string>
#include <utility>

namespace dstrain {

TraceSource::TraceSource() : log_(TraceLog::of_this_thread()) {
  if (log_ == nullptr) return;
  const std::lock_guard lock(log_->mutex_);
  log_->sources_.push_back(this);
}

TraceSource::~TraceSource() {
  if (log_ == nullptr) return;
  const std::lock_guard lock(log_->mutex_);
  std::erase(log_->sources_, this);
}

std::vector<std::string> TraceLog::start() {
  std::vector<std::string> reasons;
  for (TraceSource* const source : sources_) {
    if (auto reason = source->start()) reasons.push_back(std::move(*reason));
  }
  const std::lock_guard lock(mutex_);
  for (const auto& buffer : buffers_) {
    const std::lock_guard of_buffer(buffer->mutex);
    buffer->events.clear();
    buffer->left_out = 0;
  }
  recording_.store(true, std::memory_order_relaxed);
  return reasons;
}

std::vector<TraceLog::Track> TraceLog::stop() {
  recording_.store(false, std::memory_order_relaxed);
  std::vector<Track> tracks = tracks_of_threads();
  for (TraceSource* const source : sources_) {
    for (Track& track : source->stop())
      tracks.push_back(std::move(track));
  }
  return tracks;
}

std::vector<TraceLog::Track> TraceLog::tracks_of_threads() {
  const std::lock_guard lock(mutex_);
  std::vector<Track> tracks;
  for (const auto& buffer : buffers_) {
    const std::lock_guard of_buffer(buffer->mutex);
    tracks.push_back({.thread = buffer->thread,
                      .events = std::move(buffer->events),
                      .left_out = buffer->left_out});
    buffer->events.clear();
  }
  return tracks;
}

std::string_view TraceLog::keep(std::string_view text) {
  const std::lock_guard lock(mutex_);
  return *kept_.emplace(text).first;
}

void TraceLog::add(const TraceEvent& event) {
  const std::lock_guard lock(buffer_->mutex);  // that of the thread itself: nobody waits
  if (buffer_->events.size() < kMostEvents) {
    buffer_->events.push_back(event);
  } else {
    ++buffer_->left_out;
  }
}

TraceLog::Thread::Thread(TraceLog* log, std::string name)
    : previous_log_(log_), previous_(buffer_) {
  log_ = log;
  buffer_ = nullptr;
  if (log == nullptr) return;
  const std::lock_guard lock(log->mutex_);
  log->buffers_.push_back(std::make_unique<Buffer>());
  buffer_ = log->buffers_.back().get();
  buffer_->thread = std::move(name);
}

TraceLog::Thread::~Thread() {
  if (log_ != nullptr) {
    const std::lock_guard lock(log_->mutex_);
    if (!log_->is_recording()) {
      std::erase_if(log_->buffers_, [](const auto& buffer) { return buffer.get() == buffer_; });
    }
  }
  log_ = previous_log_;
  buffer_ = previous_;
}

void TraceSpan::add(const TraceWork& work, std::initializer_list<std::int64_t> sizes) {
  event_.flops = std::max<std::int64_t>(0, event_.flops) + work.flops;
  event_.bytes = std::max<std::int64_t>(0, event_.bytes) + work.bytes;
  if (sizes.size() == 0) return;
  std::string text;
  for (const std::int64_t size : sizes) {
    text += (text.empty() ? "" : "×") + std::to_string(size);
  }
  event_.sizes = log_->keep(text);
}

void TraceSpan::begin(const TraceEvent& event) {
  event_ = event;
  if (event.kind == TraceKind::kOperation) outer_ = std::exchange(operation_, this);
  event_.begin_ns = TraceLog::now();
}

void TraceSpan::end() {
  event_.end_ns = TraceLog::now();
  if (event_.kind == TraceKind::kOperation) {
    operation_ = outer_;
    if (event_.flops != TraceEvent::kNone) add_work({event_.flops, event_.bytes});
  }
  log_->add(event_);
}

}  // namespace dstrain
