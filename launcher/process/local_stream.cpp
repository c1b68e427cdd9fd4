#include "launcher/process/local_stream.h"

#include <utility>

namespace dstrain::launcher {
namespace {

StreamEnd stream_end(const ExitStatus& status, int broken_code) {
  if (status.never_began) return {.why = status.detail, .never_began = true};
  if (status.signal != 0) return {.signal = status.signal};
  if (status.code == broken_code) return {.why = "its connection broke"};
  return {.exit_code = status.code};
}

}  // namespace

LocalStream::LocalStream(asio::io_context& loop,
                         const std::vector<std::string>& argv,
                         const LocalStreamOptions& options)
    : broken_code_(options.broken_code),
      child_(std::make_shared<Child>(
          loop,
          ProcessSpec{.executable = argv.at(0), .argv = argv, .environment = options.environment},
          ProgramTies{.input_file = options.input_file, .leads_session = true})) {}

LocalStream::~LocalStream() {
  child_->abandon();
}

/// Reports stderr and the end; stdout is left to listen().
void LocalStream::hear(StreamEvents events) {
  child_->listen(
      {.on_output =
           [on_data = std::move(events.on_data), on_error_data = std::move(events.on_error_data)](
               OutputStream stream, std::string_view bytes) {
             (stream == OutputStream::kStdout ? on_data : on_error_data)(bytes);
           },
       .on_exit = [broken_code = broken_code_, on_closed = std::move(events.on_closed)](
                      const ExitStatus& status) { on_closed(stream_end(status, broken_code)); }});
  child_->read(OutputStream::kStderr);
}

void LocalStream::await_output(StreamEvents events, std::function<void()> on_output) {
  hear(std::move(events));
  child_->await_output(OutputStream::kStdout, std::move(on_output));
}

void LocalStream::listen(StreamEvents events) {
  hear(std::move(events));
  child_->read(OutputStream::kStdout);
}

}  // namespace dstrain::launcher
