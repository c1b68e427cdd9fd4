// LocalStream: a ByteStream to a program of this machine, started as a child: an agent, or what
// leads to one on another host: ssh (openssh_login.h), srun.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <asio.hpp>
#include <sys/types.h>

#include "launcher/process/byte_stream.h"
#include "launcher/process/child.h"

namespace dstrain::launcher {

struct LocalStreamOptions {
  std::string input_file{};  ///< becomes its stdin, in place of what write() is given
  /// Variables set over this process's own.
  std::vector<std::pair<std::string, std::string>> environment{};
  /// The exit code by which a program that is itself a channel says that this channel broke.
  int broken_code = -1;
};

class LocalStream final : public ByteStream {
 public:
  /// `argv[0]` is the program's path. It leads a session of its own: a terminal's Ctrl-C is the
  /// launcher's alone, and neither it nor what it starts can ask for anything at the terminal.
  /// Throws std::system_error if there can be no child. What keeps the child from becoming the
  /// program is reported by on_closed.
  LocalStream(asio::io_context& loop,
              const std::vector<std::string>& argv,
              const LocalStreamOptions& options = {});
  /// Kills the program, and what it left in its process group, if it still runs: wait for on_closed
  /// to let it finish.
  ~LocalStream() override;

  [[nodiscard]] pid_t pid() const { return child_->pid(); }

  /// Until listen() is called: reports stderr and the end, takes nothing of stdout, and calls
  /// `on_output` when there is some. on_data then gets what an ending program has left.
  void await_output(StreamEvents events, std::function<void()> on_output);
  void listen(StreamEvents events) override;
  void write(std::string_view bytes) override { child_->write(bytes); }
  [[nodiscard]] std::size_t queued_bytes() const override { return child_->queued_bytes(); }
  void close_input() override { child_->end_input(); }
  void close() override { child_->close(); }

 private:
  void hear(StreamEvents events);

  const int broken_code_;
  const std::shared_ptr<Child> child_;
};

}  // namespace dstrain::launcher
