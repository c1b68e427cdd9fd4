// LocalStream: a ByteStream to a program of this machine, started as a child. The same agent that
// serves a host over SSH is reached through it without SSH: by tests, and by other starters of
// programs on hosts, such as srun.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <asio.hpp>
#include <sys/types.h>

#include "launcher/byte_stream.h"

namespace dstrain::launcher {

class LocalStream final : public ByteStream {
 public:
  /// `argv[0]` is the program's path. It leads a process group of its own, so that a terminal's
  /// Ctrl-C is the launcher's alone. Throws std::system_error if it cannot be started.
  LocalStream(asio::io_context& loop, const std::vector<std::string>& argv);
  /// Kills the program if it still runs: wait for on_closed to let it finish.
  ~LocalStream() override;

  [[nodiscard]] pid_t pid() const;

  void listen(StreamEvents events) override;
  void write(std::string_view bytes) override;
  [[nodiscard]] std::size_t queued_bytes() const override;
  void close_input() override;
  void close() override;

 private:
  class Child;
  /// Shared with the handlers that wait in the event loop; they find it closed after destruction.
  std::shared_ptr<Child> child_;
};

}  // namespace dstrain::launcher
