// Engine: a RunPlan made real on one rank: device memory, groups, optimizer and the data-parallel
// strategy, wired once in the order of the members below. It trains one step at a time; what to
// train on, when to save and what to print is the Trainer's business.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/rendezvous.h"
#include "engine/optim/optimizer.h"
#include "engine/parallel/data_parallel.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/exec_context.h"
#include "engine/spec/config.h"
#include "engine/train/run_plan.h"
#include "kernels/backend.h"

namespace dstrain {

/// Fills [B, T] inputs and targets with the samples from `first_sample` on.
using LoadBatch = std::function<void(
    std::int64_t first_sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets)>;

/// Seconds of a step by phase, on the host's clock.
struct StepTimes {
  double data = 0.0;
  double forward = 0.0;
  double backward = 0.0;
  double optimizer = 0.0;
};

struct EngineStep {
  StepStats stats;
  double local_loss_sum = 0.0;  ///< nats, summed over this rank's tokens
  StepTimes times;
};

class Engine {
 public:
  /// Collective: forms the groups. `config` must be resolved and outlive the engine.
  Engine(const Config& config, Rendezvous& rendezvous, Backend backend, int threads);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One optimizer step on the samples from `start_sample` on.
  EngineStep train_step(const LoadBatch& data, std::int64_t start_sample, const StepParams& params);
  /// Summed loss of one micro-batch that starts at `first_sample`.
  double evaluate(const LoadBatch& data, std::int64_t first_sample);
  /// After the master parameters changed from outside: makes the compute copy follow.
  void refresh_parameters();
  /// Name of the first parameter whose gradient is not finite, or empty.
  [[nodiscard]] std::string first_bad_gradient() const;

  [[nodiscard]] const RunPlan& plan() const { return plan_; }
  [[nodiscard]] const Arena& arena() const { return arena_; }
  [[nodiscard]] const ExecContext& context() const { return context_; }
  [[nodiscard]] Communicator& world() { return *world_; }
  [[nodiscard]] Device& device() { return *backend_.device; }

 private:
  void load_batch(const LoadBatch& data, std::int64_t first_sample);
  void initialise_parameters(std::uint64_t seed, int threads);

  const Config& config_;
  RunPlan plan_;
  Backend backend_;
  Arena arena_;
  ExecContext context_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Communicator> data_group_;
  std::unique_ptr<Stream> communication_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<DataParallel> data_parallel_;
  std::vector<std::int32_t> host_tokens_;
  std::vector<std::int32_t> host_targets_;
};

}  // namespace dstrain
