// LocalStream: a ByteStream to a program of this machine, started as a child: an agent, or what
// leads to one on another host: ssh (openssh_login.h), srun.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <asio.hpp>
#include <sys/types.h>

#include "launcher/process/byte_stream.h"

namespace dstrain::launcher {

struct LocalStreamOptions {
  std::string input_file{};  ///< is the program's stdin, and write() is not used; empty: write() is
  /// The exit code by which a program that is itself a channel says that this channel broke.
  int broken_code = -1;
};

class LocalStream final : public ByteStream {
 public:
  /// `argv[0]` is the program's path. It leads a session of its own: a terminal's Ctrl-C is the
  /// launcher's alone, and neither it nor what it starts can ask for anything at the terminal.
  /// Throws std::system_error if it cannot be started.
  LocalStream(asio::io_context& loop,
              const std::vector<std::string>& argv,
              const LocalStreamOptions& options = {});
  /// Kills the program, and what it left in its process group, if it still runs: wait for on_closed
  /// to let it finish.
  ~LocalStream() override;

  [[nodiscard]] pid_t pid() const;

  /// Until listen() is called: reports stderr and the end, takes nothing of stdout, and calls
  /// `on_output` when there is some. on_data then gets what an ending program has left.
  void await_output(StreamEvents events, std::function<void()> on_output);
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
