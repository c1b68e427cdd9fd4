#include "engine/comm/activity.h"

#include <functional>
#include <utility>

#include "kernels/core/stream_decorator.h"

namespace dstrain {
namespace {

/// A side stream's decorator. Its events carry itself, so that a stream which waits for one comes
/// through here.
class ToldStream final : public StreamDecorator {
 public:
  ToldStream(std::unique_ptr<Stream> inner, ActivityRecorder& recorder)
      : inner_(std::move(inner)), recorder_(recorder) {}

  [[nodiscard]] Stream& inner() override { return *inner_; }
  [[nodiscard]] bool is_inline() const override { return inner_->is_inline(); }
  void enqueue(std::function<void()> task) override { inner_->enqueue(std::move(task)); }
  [[nodiscard]] Event record() override {
    const Event event = inner_->record();
    return {.stream = event.stream == nullptr ? nullptr : this, .ticket = event.ticket};
  }
  void wait(const Event& event) override {
    if (event.stream != this) inner_->wait(event);  // else: ordered by the queue itself
  }
  void wait_until(std::uint64_t ticket) override {
    const Wait wait(recorder_);
    inner_->wait_until(ticket);
  }
  void synchronize() override {
    const Wait wait(recorder_);
    inner_->synchronize();
  }

 private:
  class Wait {
   public:
    explicit Wait(ActivityRecorder& recorder) : recorder_(recorder) { recorder_.begin_wait(); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    ~Wait() { recorder_.end_wait(); }

   private:
    ActivityRecorder& recorder_;
  };

  const std::unique_ptr<Stream> inner_;
  ActivityRecorder& recorder_;
};

}  // namespace

std::unique_ptr<Stream> tell_waits(std::unique_ptr<Stream> stream, ActivityRecorder* recorder) {
  if (recorder == nullptr || stream == nullptr || stream->is_inline()) return stream;
  return std::make_unique<ToldStream>(std::move(stream), *recorder);
}

}  // namespace dstrain
