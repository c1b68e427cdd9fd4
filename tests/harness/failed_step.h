// Measures how long a rank takes to end whose step fails while one of its collectives is under way
// that the other rank never joins.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/train/engine.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {

/// An exception that no trainer throws.
class InjectedFailure : public std::runtime_error {
 public:
  InjectedFailure() : std::runtime_error("injected behind a collective") {}
};

/// Throws once a reduction of gradients is on its stream.
class FailingCommunicator final : public Communicator {
 public:
  explicit FailingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] const std::string& name() const override { return inner_->name(); }
  void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& stream) override {
    inner_->all_reduce(inout, op, purpose, stream);
  }
  void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) override {
    inner_->reduce_scatter(in, out, op, purpose, stream);
    throw InjectedFailure();
  }
  void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) override {
    inner_->all_gather(in, out, purpose, stream);
  }
  void broadcast(Tensor inout, int root, Purpose purpose, Stream& stream) override {
    inner_->broadcast(inout, root, purpose, stream);
  }
  void all_to_all(ConstTensor in,
                  std::span<const std::int64_t> sent,
                  Tensor out,
                  std::span<const std::int64_t> received,
                  Purpose purpose,
                  Stream& stream) override {
    inner_->all_to_all(in, sent, out, received, purpose, stream);
  }
  void exchange(std::span<const P2p> messages, Purpose purpose, Stream& stream) override {
    inner_->exchange(messages, purpose, stream);
  }
  void barrier() override { inner_->barrier(); }
  void abort() noexcept override { inner_->abort(); }

 private:
  const std::unique_ptr<Communicator> inner_;
};

/// Makes such communicators around those that `by_device` makes, or `host` where there is none.
class FailingRendezvous final : public Rendezvous {
 public:
  FailingRendezvous(Rendezvous& host, std::unique_ptr<Rendezvous> by_device)
      : by_device_(std::move(by_device)), inner_(by_device_ != nullptr ? *by_device_ : host) {}
  [[nodiscard]] int world_rank() const override { return inner_.world_rank(); }
  [[nodiscard]] int world_size() const override { return inner_.world_size(); }
  [[nodiscard]] std::unique_ptr<Communicator> make_group(const std::string& name,
                                                         std::span<const int> members) override {
    return std::make_unique<FailingCommunicator>(inner_.make_group(name, members));
  }

 private:
  const std::unique_ptr<Rendezvous> by_device_;
  Rendezvous& inner_;
};

struct RankDevices {
  std::function<Backend(int rank)> backend;
  /// May return nullptr: the host's rendezvous serves the device too.
  std::function<std::unique_ptr<Rendezvous>(Rendezvous& host, Device&)> rendezvous;
};

/// Of two ranks with ZeRO-2, rank 0 trains and fails, and rank 1 never trains. Returns the seconds
/// from the failure to the end of rank 0's engine.
inline double seconds_to_end_failed_step(std::vector<std::unique_ptr<Rendezvous>> world,
                                         const RankDevices& devices) {
  using Clock = std::chrono::steady_clock;
  const TinyOptions options{.micro_batch = 1, .zero_stage = 2};
  const Config config = tiny_config(options, 2);
  std::atomic<bool> is_over{false};
  const auto seconds = thread_world(std::move(world), [&](Rendezvous& rendezvous) {
    Clock::time_point failed_at{};
    try {
      Backend backend = devices.backend(rendezvous.world_rank());
      auto groups = std::make_unique<FailingRendezvous>(
          rendezvous, devices.rendezvous(rendezvous, *backend.device));
      Engine engine(make_run_plan(config, rendezvous.world_size(), rendezvous.world_rank()),
                    rendezvous, std::move(backend), 1, nullptr, std::move(groups));
      if (rendezvous.world_rank() == 0) {
        try {
          (void)train_tiny_step(engine, options, 0);
        } catch (const InjectedFailure&) {
          failed_at = Clock::now();
          throw;
        }
      }
      while (!is_over) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
      }
    } catch (const InjectedFailure&) {
      is_over = true;
      return std::chrono::duration<double>(Clock::now() - failed_at).count();
    }
    return 0.0;
  });
  check(seconds[0] > 0.0, "the step has not failed");
  return seconds[0];
}

}  // namespace dstrain::test
