#include "launcher/agent/output_queue.h"

#include <algorithm>

namespace dstrain::launcher {

void OutputQueue::say(const FromAgent& message) {
  urgent_ += encode(message);
}

void OutputQueue::say_of_rank(std::int32_t number, const FromAgent& message) {
  Rank& rank = ranks_[number];
  report_dropped(rank, number);
  rank.messages.push_back(message);
}

void OutputQueue::output(std::int32_t number, bool is_stderr, std::string_view bytes) {
  Rank& rank = ranks_[number];
  Stream& stream = rank.streams[is_stderr ? 1 : 0];
  if (stream.is_dropping) {  // the rest of a line whose beginning is lost
    const std::size_t end = bytes.find('\n');
    drop(rank, bytes.substr(0, end == std::string_view::npos ? end : end + 1));
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
    stream.is_dropping = false;
  }
  const std::size_t room = bytes_a_stream_ - std::min(bytes_a_stream_, stream.queued);
  if (bytes.size() > room) {
    const std::size_t last_end = room == 0 ? std::string_view::npos : bytes.rfind('\n', room - 1);
    std::size_t kept = last_end == std::string_view::npos ? 0 : last_end + 1;
    // A line whose beginning is queued is completed, unless it has no end.
    if (kept == 0 && stream.in_line) kept = bytes.substr(0, kMaxOutputBytes).find('\n') + 1;
    const std::string_view lost = bytes.substr(kept);
    bytes = bytes.substr(0, kept);
    stream.queued += bytes.size();
    append(rank, number, is_stderr, bytes);
    // Output after the gap must not run into it.
    if (kept == 0 && stream.in_line) append(rank, number, is_stderr, "\n");
    stream.in_line = false;
    stream.is_dropping = !lost.ends_with('\n');
    drop(rank, lost);
    return;
  }
  if (bytes.empty()) return;
  stream.queued += bytes.size();
  stream.in_line = !bytes.ends_with('\n');
  append(rank, number, is_stderr, bytes);
}

void OutputQueue::append(Rank& rank, std::int32_t number, bool is_stderr, std::string_view bytes) {
  if (bytes.empty()) return;
  report_dropped(rank, number);
  while (!bytes.empty()) {
    auto* last = rank.messages.empty() ? nullptr : std::get_if<Output>(&rank.messages.back());
    if (last == nullptr || last->is_stderr != is_stderr || last->bytes.size() >= kMaxOutputBytes) {
      rank.messages.emplace_back(Output{.rank = number, .is_stderr = is_stderr, .bytes = {}});
      last = &std::get<Output>(rank.messages.back());
    }
    const std::size_t size = std::min(bytes.size(), kMaxOutputBytes - last->bytes.size());
    last->bytes += bytes.substr(0, size);
    bytes.remove_prefix(size);
  }
}

void OutputQueue::drop(Rank& rank, std::string_view bytes) {
  rank.dropped_bytes += static_cast<std::int64_t>(bytes.size());
  rank.dropped_lines += std::count(bytes.begin(), bytes.end(), '\n');
}

void OutputQueue::report_dropped(Rank& rank, std::int32_t number) {
  if (rank.dropped_bytes == 0) return;
  rank.messages.emplace_back(
      Dropped{.rank = number, .bytes = rank.dropped_bytes, .lines = rank.dropped_lines});
  rank.dropped_bytes = 0;
  rank.dropped_lines = 0;
}

std::string OutputQueue::take() {
  constexpr std::size_t kBatchBytes = 256 << 10;
  std::string frames = std::exchange(urgent_, {});
  while (frames.size() < kBatchBytes) {
    // Finds the next rank, after the one whose turn was last, that has something queued.
    const auto has_something = [](const auto& entry) { return !entry.second.empty(); };
    auto next = std::find_if(ranks_.upper_bound(last_turn_), ranks_.end(), has_something);
    if (next == ranks_.end()) next = std::find_if(ranks_.begin(), ranks_.end(), has_something);
    if (next == ranks_.end()) break;
    auto& [number, rank] = *next;
    last_turn_ = number;
    if (rank.messages.empty()) report_dropped(rank, number);
    if (const auto* output = std::get_if<Output>(&rank.messages.front())) {
      Stream& stream = rank.streams[output->is_stderr ? 1 : 0];
      stream.queued -= std::min(stream.queued, output->bytes.size());
    }
    frames += encode(rank.messages.front());
    rank.messages.pop_front();
  }
  return frames;
}

bool OutputQueue::empty() const {
  return urgent_.empty() && std::all_of(ranks_.begin(), ranks_.end(),
                                        [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace dstrain::launcher
