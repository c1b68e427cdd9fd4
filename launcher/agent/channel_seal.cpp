#include "launcher/agent/channel_seal.h"

#include <utility>

#include "engine/base/wire.h"

namespace dstrain::launcher {
namespace {

class SealedStream final : public ByteStream {
 public:
  SealedStream(std::unique_ptr<ByteStream> inner, std::unique_ptr<ChannelSeal> seal)
      : shared_(std::make_shared<Shared>()) {
    shared_->inner = std::move(inner);
    shared_->seal = std::move(seal);
  }
  ~SealedStream() override {
    shared_->events = {};
    shared_->is_over = true;
    shared_->inner.reset();  // which tells nothing from now on
  }

  void listen(StreamEvents events) override {
    shared_->events = std::move(events);
    if (std::exchange(shared_->is_heard, true)) return;
    shared_->inner->listen(
        {.on_data = [shared = shared_](std::string_view bytes) { take(*shared, bytes); },
         .on_error_data = [](std::string_view) {},
         .on_closed = [shared = shared_](const StreamEnd& end) { finish(*shared, end); }});
  }
  void write(std::string_view bytes) override { shared_->inner->write(shared_->seal->seal(bytes)); }
  [[nodiscard]] std::size_t queued_bytes() const override { return shared_->inner->queued_bytes(); }
  void close_input() override { shared_->inner->close_input(); }
  void close() override { shared_->inner->close(); }

 private:
  /// Outlives the stream while a callback that has destroyed it returns.
  struct Shared {
    std::unique_ptr<ByteStream> inner;
    std::unique_ptr<ChannelSeal> seal;
    StreamEvents events;
    bool is_heard = false;
    bool is_over = false;
  };

  static void take(Shared& shared, std::string_view bytes) {
    if (shared.is_over) return;
    try {
      shared.seal->open(bytes, [&shared](std::string_view plain) {
        const auto on_data = shared.events.on_data;  // a copy: it may replace itself from within
        if (!shared.is_over && on_data) on_data(plain);
      });
    } catch (const ProtocolError& error) {
      if (shared.is_over) return;
      shared.inner->close();
      finish(shared, {.why = error.what()});
    }
  }

  static void finish(Shared& shared, const StreamEnd& end) {
    if (std::exchange(shared.is_over, true)) return;
    const auto on_closed = shared.events.on_closed;
    if (on_closed) on_closed(end);
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<ByteStream> sealed_stream(std::unique_ptr<ByteStream> inner,
                                          std::unique_ptr<ChannelSeal> seal) {
  return std::make_unique<SealedStream>(std::move(inner), std::move(seal));
}

}  // namespace dstrain::launcher
