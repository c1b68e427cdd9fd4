// TraceLog: what the threads of one rank do, for as long as somebody wants to know.
//
// A thread takes part in the log that it is bound to (TraceLog::Thread); threads that a bound
// thread starts are bound by whoever starts them. Where nothing is recorded, a span costs a look at
// a variable of the thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace dstrain {

enum class TraceKind : std::uint8_t {
  kAction,      ///< a stretch of the program: a step, a micro-batch, a block
  kOperation,   ///< of kernels/ops.h, or a copy
  kKernel,      ///< of a GPU, by its own name; or a copy by it
  kCollective,  ///< of a communicator
  kWait,        ///< for a stream
  kSent,        ///< a message of a collective, sent from its beginning on
  kReceived     ///< a message that had come when the collective ended
};

/// What happened on one thread. Texts outlive the log, or are kept by it.
struct TraceEvent {
  static constexpr std::int64_t kNone = -1;

  TraceKind kind = TraceKind::kAction;
  std::string_view name;
  std::int64_t begin_ns = 0;  ///< of this host's steady clock
  std::int64_t end_ns = 0;
  std::int64_t number = kNone;  ///< that tells events of one name apart: step, micro-batch, message
  std::int64_t bytes = kNone;   ///< of a collective's whole buffer; that an operation must move
  std::int64_t flops = kNone;   ///< of an operation
  std::string_view sizes{};     ///< of an operation, which tell those of one name apart
  std::string_view group{};     ///< of a collective
  std::string_view purpose{};   ///< likewise
  int ranks = 0;                ///< in that group
  int peer = -1;                ///< of a message: the other's rank in the world
};

/// The events of one thread, in the order in which they ended.
struct TraceTrack {
  std::string thread;
  std::vector<TraceEvent> events;
  std::int64_t left_out = 0;  ///< of them, after the most that it may have
};

class TraceLog;

/// Something beside threads that knows what happens: a GPU. Belongs to the log of the thread that
/// makes it, which must outlive it; called by that thread.
class TraceSource {
 public:
  TraceSource();
  TraceSource(const TraceSource&) = delete;
  TraceSource& operator=(const TraceSource&) = delete;
  virtual ~TraceSource();

  /// Begins to listen. Returns the reason if it cannot.
  virtual std::optional<std::string> start() = 0;
  /// Ends it, and returns what was heard. Does nothing where it did not listen.
  virtual std::vector<TraceTrack> stop() = 0;

 protected:
  [[nodiscard]] TraceLog* log() const { return log_; }

 private:
  TraceLog* const log_;  ///< nullptr: the thread has none
};

class TraceLog {
 private:
  struct Buffer {
    std::mutex mutex;
    std::string thread;
    std::vector<TraceEvent> events;
    std::int64_t left_out = 0;
  };

 public:
  /// The most events of a thread: 250 MB.
  static constexpr std::size_t kMostEvents = std::size_t{1} << 21U;

  TraceLog() = default;
  TraceLog(const TraceLog&) = delete;
  TraceLog& operator=(const TraceLog&) = delete;
  ~TraceLog() = default;

  using Track = TraceTrack;

  /// Begins to record, with nothing recorded before. Returns what sources cannot tell, and why.
  std::vector<std::string> start();
  /// Ends it. Returns the threads' tracks in the order in which they were bound, those without
  /// events too, and behind them those of sources.
  std::vector<Track> stop();
  [[nodiscard]] bool is_recording() const { return recording_.load(std::memory_order_relaxed); }
  /// A copy of `text` that stays as long as the log.
  std::string_view keep(std::string_view text);

  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  /// Binds the thread that makes it to a log, for its own lifetime.
  class Thread {
   public:
    /// The log, if any, must outlive it.
    Thread(TraceLog* log, std::string name);
    Thread(const Thread&) = delete;
    Thread& operator=(const Thread&) = delete;
    ~Thread();

   private:
    TraceLog* const previous_log_;
    Buffer* const previous_;
  };

  /// The log of the calling thread; nullptr: it has none.
  static TraceLog* of_this_thread() { return log_; }
  /// That log if it is recording; otherwise nullptr.
  static TraceLog* recording() { return log_ != nullptr && log_->is_recording() ? log_ : nullptr; }
  /// Adds an event to the track of the calling thread, whose log this must be.
  void add(const TraceEvent& event);

 private:
  friend class TraceSource;

  std::vector<Track> tracks_of_threads();

  constinit static inline thread_local TraceLog* log_ = nullptr;
  constinit static inline thread_local Buffer* buffer_ = nullptr;

  std::atomic<bool> recording_{false};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<TraceSource*> sources_;
  std::unordered_set<std::string> kept_;
};

/// The work of an operation: its FLOPs, and the fewest bytes that it must read and write.
struct TraceWork {
  std::int64_t flops = 0;
  std::int64_t bytes = 0;
};

/// An event that lasts as long as this exists.
class TraceSpan {
 public:
  explicit TraceSpan(const TraceEvent& event) : log_(TraceLog::recording()) {
    if (log_ != nullptr) begin(event);
  }
  TraceSpan(TraceKind kind, std::string_view name, std::int64_t number = TraceEvent::kNone)
      : log_(TraceLog::recording()) {
    if (log_ != nullptr) begin({.kind = kind, .name = name, .number = number});
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (log_ != nullptr) end();
  }

  /// Whether an operation is under way on this thread that is recorded.
  static bool is_recording() { return operation_ != nullptr; }
  /// Adds to what that operation does; nothing where there is none. `sizes`: of this work.
  static void add_work(const TraceWork& work, std::initializer_list<std::int64_t> sizes = {}) {
    if (operation_ != nullptr) operation_->add(work, sizes);
  }

 private:
  void add(const TraceWork& work, std::initializer_list<std::int64_t> sizes);
  void begin(const TraceEvent& event);
  void end();

  TraceLog* const log_;
  TraceEvent event_;
  TraceSpan* outer_ = nullptr;  // of an operation: the one that it is a part of

  constinit static inline thread_local TraceSpan* operation_ = nullptr;
};

}  // namespace dstrain
