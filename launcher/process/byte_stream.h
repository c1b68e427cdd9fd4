// ByteStream: the two-way channel of bytes to one program that runs somewhere: over SSH as its
// exec gives it, or to a child of this process (local_stream.h).
//
// Nothing here waits. Writing queues; what comes back is reported by callbacks, always from the
// event loop and never from within a call of this class. How the program ended is reported once, as
// the last callback, whatever the reason was: its own end, or the channel's.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain::launcher {

/// The end of a stream.
struct StreamEnd {
  std::optional<int> exit_code{};  ///< the program's, if it ended by itself and this is known
  int signal = 0;                  ///< the signal that ended the program, or 0
  /// If neither is set: why the channel ended, as a clause, "connection reset by peer".
  std::string why{};
  bool never_began = false;  ///< `why` says what kept the program from running
};

struct StreamEvents {
  std::function<void(std::string_view bytes)> on_data{};        ///< the program's stdout
  std::function<void(std::string_view bytes)> on_error_data{};  ///< the program's stderr
  std::function<void(const StreamEnd&)> on_closed{};            ///< once, after all of the above
};

class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  /// No callback comes after this. The program's input ends, as after close().
  virtual ~ByteStream() = default;

  /// Sets who listens from now on; what came before is reported now. All three functions must be
  /// set. A later call replaces the listener, as when a job follows a probe.
  virtual void listen(StreamEvents events) = 0;

  /// Queues bytes for the program's stdin. Ignored after the stream's or the input's end.
  virtual void write(std::string_view bytes) = 0;
  /// The number of those bytes that are not handed over yet.
  [[nodiscard]] virtual std::size_t queued_bytes() const = 0;
  /// Ends the program's stdin after what is queued.
  virtual void close_input() = 0;
  /// Gives up both directions now; on_closed follows.
  virtual void close() = 0;
};

}  // namespace dstrain::launcher
