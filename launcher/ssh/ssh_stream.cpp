#include "launcher/ssh/ssh_stream.h"

#include <utility>

namespace dstrain::launcher {

SshStream::~SshStream() {
  channel_->listener.reset();
  channel_->more_input = nullptr;
  close();
}

void SshStream::listen(StreamEvents events) {
  channel_->listener = std::make_shared<StreamEvents>(std::move(events));
  link_->schedule();
}

void SshStream::write(std::string_view bytes) {
  if (channel_->input_ends || channel_->end || channel_->to_close) return;
  channel_->outgoing += bytes;
  link_->schedule();
}

std::size_t SshStream::queued_bytes() const {
  return SshLink::queued_bytes(*channel_);
}

void SshStream::close_input() {
  channel_->input_ends = true;
  link_->schedule();
}

void SshStream::close() {
  channel_->to_close = true;
  channel_->input_ends = true;
  link_->schedule();
}

void SshStream::take_input_from(std::function<std::string()> more_input) {
  channel_->more_input = std::move(more_input);
  link_->schedule();
}

}  // namespace dstrain::launcher
