// StepMetrics: what rank 0 knows of a step once it is done: its loss, its time, what memory and
// devices say. It is what observers and the files of a run are told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/parallel/offloaded_update.h"
#include "engine/train/routing_report.h"
#include "engine/train/time_split.h"
#include "kernels/core/device.h"

namespace dstrain {

/// The amount that a rank holds of the memory that it computes in. On a GPU, that is what its
/// process holds there; on a CPU, the process's own memory is measured, without the pages of files
/// that it has mapped: those are the system's cache, which it reclaims when memory is needed, and
/// for a large data set they are more than everything else together.
struct RankMemory {
  std::int64_t planned_bytes = 0;   ///< the arena
  std::int64_t overhead_bytes = 0;  ///< expected beside it (library_overhead.h)
  std::int64_t measured_bytes = 0;  ///< now
  std::int64_t peak_bytes = 0;      ///< the most of it at any of the moments when it was looked at
  std::int64_t resident_peak_bytes = 0;  ///< the most ever by the kernel's count, mapped files too
};

/// The seconds of a step on rank 0's host, by phase. A GPU works behind the host: there they say
/// when work was enqueued, and the wait for it is in the phase that needs a result.
struct PhaseSeconds {
  double data = 0.0;
  double forward = 0.0;
  double backward = 0.0;
  double optimizer = 0.0;
  /// The part of all these, and of agreeing on the loss, spent waiting for other ranks. Absent: not
  /// counted.
  std::optional<double> communication;
};

/// Of the pairs, or of the rated answers, of a step or of an evaluation.
struct PreferenceMetrics {
  /// β log r (preference_config.h), or the score, of the chosen or liked answers, their mean; none:
  /// there are none.
  std::optional<double> chosen_reward;
  std::optional<double> rejected_reward;  ///< likewise, of the others
  std::optional<double> accuracy;         ///< the share of pairs whose chosen one's is higher
  std::optional<double> divergence;       ///< z, nats, where the loss has it
};

/// A text that the model continued at an evaluation.
struct SampledText {
  std::string prompt;  ///< as the config has it
  std::string text;    ///< UTF-8
  std::int64_t tokens = 0;
  std::string ended_by;  ///< name_of(EndReason)
};

/// A completion that was sampled and rewarded before a step.
struct SampledRollout {
  std::string prompt;  ///< JSON: a text, or messages
  std::string text;    ///< UTF-8
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> ids;  ///< of the completion, with that which ended it
  bool is_truncated = false;
  std::optional<double> score{};  ///< by the reward model; none without one
  double reward = 0.0;
  double advantage = 0.0;
};

/// What was sampled for a step, and how its training went.
struct PolicyMetrics {
  double reward = 0.0;            ///< their mean
  double reward_deviation = 0.0;  ///< within the completions of a prompt, the mean
  double completion_tokens = 0.0;
  double truncated = 0.0;              ///< the share of those that were cut off
  std::optional<double> divergence{};  ///< from the reference, nats a token; none without β
  std::optional<double> clipped{};     ///< the share of tokens; none where all ratios are 1
  std::optional<double> value_loss{};  ///< of "ppo"
  double sampling_seconds = 0.0;
  double reward_seconds = 0.0;
};

struct StepMetrics {
  std::int64_t step = 0;             ///< optimizer steps done
  std::int64_t batch_size = 0;       ///< sequences of the step
  std::int64_t sequence_length = 0;  ///< their tokens
  std::int64_t tokens = 0;           ///< seen since step 0
  std::int64_t samples = 0;          ///< sequences seen since step 0
  double loss = 0.0;                 ///< mean over the step's tokens, nats; or over its pairs
  std::optional<PreferenceMetrics> preferences{};  ///< none: the next token alone is trained
  std::optional<PolicyMetrics> policy{};           ///< none: no rewards
  std::vector<SampledRollout> rollouts{};          ///< on rank 0
  std::optional<double> validation_loss;
  std::optional<double> validation_token_accuracy{};  ///< none: targets are weighed
  std::optional<PreferenceMetrics> validation_preferences{};
  std::vector<SampledText> texts{};  ///< at that evaluation
  double learning_rate = 0.0;
  double grad_norm = 0.0;
  double loss_scale = 1.0;
  std::vector<LayerRouting> routing{};  ///< by layer with experts
  bool skipped = false;                 ///< gradients were not finite: nothing was updated
  double step_seconds = 0.0;
  PhaseSeconds phases;
  std::optional<TimeSplit> split;          ///< of all ranks; none where waits are not counted
  double evaluation_seconds = 0.0;         ///< after the step, where there was one
  double checkpoint_seconds = 0.0;         ///< that training stood still for saves before this step
  bool saving = false;                     ///< a save was being written during this step
  std::optional<OffloadedUpdate> offload;  ///< rank 0's last one that had ended
  double tokens_per_second = 0.0;
  double model_flops_per_second = 0.0;
  /// The share of what the ranks' devices can do according to their data sheet, where that is
  /// known.
  std::optional<double> model_flops_utilization;
  std::vector<RankMemory> memory;       ///< by rank
  std::vector<DeviceReadings> devices;  ///< by rank; none where devices are hosts
  std::vector<RankTime> times;          ///< by rank; none where waits are not counted
};

/// The readings of all ranks' devices: which one holds the others up, and why.
struct DeviceSummary {
  std::size_t slowest_rank = 0;  ///< that of the lowest clock
  std::optional<double> lowest_compute_mhz;
  std::optional<double> total_watts;
  std::optional<double> highest_celsius;
  int slowed_ranks = 0;
  Slowdown slowed_by;  ///< some of them
};
DeviceSummary summarize(const std::vector<DeviceReadings>& by_rank);

/// The rank that held most at any moment. `by_rank` is not empty.
std::size_t fullest_rank(const std::vector<RankMemory>& by_rank);

}  // namespace dstrain
