// SshStream: the ByteStream to a program on a host, over a channel of a link (ssh_link.h).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/process/byte_stream.h"
#include "launcher/ssh/ssh_link.h"

namespace dstrain::launcher {

/// Keeps the link alive.
class SshStream final : public ByteStream {
 public:
  SshStream(std::shared_ptr<SshLink> link, std::shared_ptr<SshChannel> channel)
      : link_(std::move(link)), channel_(std::move(channel)) {}
  ~SshStream() override;

  void listen(StreamEvents events) override;
  void write(std::string_view bytes) override;
  [[nodiscard]] std::size_t queued_bytes() const override;
  void close_input() override;
  void close() override;
  /// Instead of write(): asks for bytes as they can be sent; an empty answer ends the input.
  void take_input_from(std::function<std::string()> more_input);

 private:
  std::shared_ptr<SshLink> link_;
  std::shared_ptr<SshChannel> channel_;
};

}  // namespace dstrain::launcher
