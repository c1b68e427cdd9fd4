// Tiny models and a few training steps on them, as the parity tests compare them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/rendezvous.h"
#include "engine/config/config.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/shard_map.h"
#include "engine/train/engine.h"
#include "tests/harness/recording_communicator.h"

namespace dstrain::test {

enum class Family { kGpt2, kLlama };

/// A model that is awkward on purpose: odd vocabulary, grouped heads, a sequence that is not a
/// multiple of a tile.
ModelSpec tiny_model(Family family);
/// The same with matrices that may be multiplied in 8 bits, also when halved, where the tokens of a
/// micro-batch are a multiple of 16.
ModelSpec tiny_model_in_16s(Family family);

struct TinyOptions {
  Family family = Family::kLlama;
  bool tied = false;
  std::optional<ModelSpec> model{};  ///< instead of the family's
  Precision precision = Precision::kF32;
  std::int64_t sequence = 19;
  std::int64_t micro_batch = 4;
  std::int64_t accumulation = 1;
  double gradient_clipping = 0.0;
  double learning_rate = 3e-3;
  bool overlap_comm = true;
  int zero_stage = 0;
  Space states = Space::kDevice;      ///< where masters and moments lie
  Space parameters = Space::kDevice;  ///< where they lie between uses; stage 3
  /// How states pass where they lie elsewhere; a disk is that of the folder that tests run in.
  OffloadConfig offload{.sub_group_size = 4096};
  ZeroConfig zero{.param_persistence_threshold = 0};  ///< stage and overlap_comm are the above
  RecomputeConfig recompute{};
  FormatConfig formats{};
  Fp8Config fp8{};
  OptimizerConfig optimizer{.weight_decay = 0.1};  ///< its learning rate is the above
  CompressionConfig compression{};
  TensorParallelConfig tensor_parallel{};
  ContextParallelConfig context_parallel{};
  ExpertParallelConfig expert_parallel{};
  std::optional<double> expert_capacity_factor{};
  std::optional<std::int64_t> loss_tile_tokens{};
  std::optional<std::int64_t> mlp_tile_tokens{};
  PipelineConfig pipeline{};
  DocumentRules documents{};
  DropoutConfig dropout{};
  double loss_scale = 1.0;
  int steps = 10;
  std::uint64_t seed = 1234;  ///< of the initial parameters
  /// The micro-batch of all ranks' that is trained in each place of a step; empty: each in its own.
  std::vector<std::int64_t> dealt{};
  TensorPatterns freeze{};
  TensorRates rates{};
  AdapterConfig adapters{};
  double noise_alpha = 0.0;
  bool weighs_targets = false;  ///< SequenceObjective is minimised
  bool cuda_graphs = false;
  BlockOrder block_order = BlockOrder::kHorizontal;
  /// The store by which ranks that compute on GPUs find each other; nullptr: they compute on the
  /// CPU.
  Store* gpu_store = nullptr;
};

/// A part of a named tensor that a rank holds, as f32.
struct HeldPiece {
  std::string state;  ///< "parameter" (the master), "exp_avg", …
  Piece piece;
  std::vector<float> values;
};

struct TinyRun {
  std::vector<double> losses;  ///< global mean, before each step's update
  std::vector<double> grad_norms;
  std::vector<std::vector<LayerRouting>> routing;  ///< by step, then by layer with experts
  /// All masters after the last step, in declaration order; none of ranks on GPUs.
  std::vector<float> parameters;
  std::int64_t arena_bytes = 0;
  std::int64_t plan_bytes = 0;
  std::vector<std::int64_t> arena_spaces;  ///< bytes by Space
  std::vector<std::int64_t> plan_spaces;
  std::vector<Region> regions;  ///< of the plan
  std::vector<std::int64_t> unit_numel;
  std::vector<std::int64_t> unit_padded;
  int num_units = 0;
  std::vector<CollectiveLog::Entry> traffic;  ///< of the last step, this rank
  /// The first entry, in the first such step, where the recorded operations differ from the plan;
  /// empty if there is none.
  std::string unplanned_traffic;
  std::vector<HeldPiece> held;  ///< after the last step
};

/// The state that this rank updates.
std::vector<HeldPiece> held_state(const Engine& engine);
/// An engine on the CPU, or on the GPUs in turn where there is a store. `config` and `rendezvous`
/// must outlive it.
std::unique_ptr<Engine> make_tiny_engine(const Config& config,
                                         Rendezvous& rendezvous,
                                         Store* gpu_store,
                                         Space states = Space::kDevice,
                                         Space parameters = Space::kDevice);
/// Trains one step on the synthetic stream, from step 0 on.
EngineStep train_tiny_step(Engine& engine,
                           const TinyOptions& options,
                           int step,
                           const std::function<void()>& before_update = {});

/// A unit's master parameters, gathered from all ranks. Collective.
std::vector<float> whole_master(Engine& engine, int unit);
Config tiny_config(const TinyOptions& options, int world_size);
/// Trains on a fixed synthetic stream of samples, the same for every world size.
TinyRun train_tiny(Rendezvous& rendezvous, const TinyOptions& options);
/// The same with one rank.
TinyRun train_tiny(const TinyOptions& options);
/// The same with several ranks, as threads.
std::vector<TinyRun> train_ranks(int ranks, const TinyOptions& options);
/// The largest |a / b - 1|. Throws InternalError if the two differ in length.
double worst_relative(const std::vector<double>& a, const std::vector<double>& b);
/// Sample `index` of the synthetic stream: a noisy cycle that a model can learn.
void synthetic_sample(std::int64_t index,
                      std::int64_t vocab_size,
                      std::span<std::int32_t> inputs,
                      std::span<std::int32_t> targets);

}  // namespace dstrain::test
