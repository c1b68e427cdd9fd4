// CallerStream: runs every task at once in the caller's thread. It is meant for collectives on host
// memory, which do not belong on a device's streams: on a GPU's, host work would hold up the
// driver's thread.
#pragma once

#include "kernels/core/device.h"

namespace dstrain {

class CallerStream final : public Stream {
 public:
  [[nodiscard]] bool is_inline() const override { return true; }
  void enqueue(std::function<void()> task) override { task(); }
  [[nodiscard]] Event record() override { return {}; }
  void wait(const Event& event) override {
    if (event.stream != nullptr) {
      event.stream->wait_until(event.ticket);
    }
  }
  void wait_until(std::uint64_t /*ticket*/) override {}
  void synchronize() override {}
};

}  // namespace dstrain
