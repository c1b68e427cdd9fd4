// The engine's training state as named pieces: what a checkpoint saves and loads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"

namespace dstrain {

/// kMySlice: this rank's data-parallel slice of each unit that is saved, so that the ranks share
/// the writing; kEverything: all that this rank updates, which is what it must load.
enum class StateExtent : std::uint8_t { kMySlice, kEverything };

/// The state that every checkpoint has: masters.
inline constexpr const char* kParameterState = "parameter";
/// The remainders that codes left: of what a rank had to say, and of the means that it told the
/// others.
inline constexpr const char* kWorkersState = "worker_error";
inline constexpr const char* kServersState = "server_error";
/// The remainder that compression left of a rank's gradients of the mean loss.
inline constexpr const char* kGradientsState = "gradient_error";
/// PowerSGD's Q of the last step: the state "right_factor" of a tensor of its own,
/// "powersgd/<parameter>", [tensor-parallel shards · rank, columns of a shard].
inline constexpr const char* kFactorState = "right_factor";
inline constexpr const char* kFactorPrefix = "powersgd/";

/// States beside the parameters' masters and the moments that all ranks share, which a run has from
/// some update on. Of those that data-parallel ranks have of their own a checkpoint has one for
/// each of them.
struct OwnStates {
  /// Remainders that codes left out (RegionKind::kUnsent, kServersUnsent), and a third moment that
  /// is of use beside them.
  bool unsent = false;
  bool alone = false;  ///< momenta, and sums of updates that ranks took alone

  /// Those that the run has after so many updates.
  static OwnStates after(const RunPlan& plan, std::int64_t updates);
  /// All that the run may come to have.
  static OwnStates all(const RunPlan& plan);
};
/// "worker_error.3", of data-parallel rank 3.
std::string own_state_name(const std::string& state, int rank);

/// Elements [begin, end) of what this rank updates of a unit, before there is any memory. Region
/// kMaster means the parameters themselves where there is no other master, kConstants the buffer of
/// PowerSGD's factors or `buffer`.
struct StatePart {
  std::string state;
  Piece piece;
  RegionKind region;
  int unit = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  DType dtype = DType::kF32;
  bool is_own = false;         ///< each data-parallel rank has another one of the same name
  bool may_be_absent = false;  ///< in checkpoints: it is 0 then
  bool is_factor = false;      ///< it may be absent or of another shape: what it began with stays
  BufferRef buffer{};          ///< of a tensor that is not trained, which is all of it
};
void for_each_state_part(const RunPlan& plan,
                         StateExtent extent,
                         OwnStates own,
                         const std::function<void(const StatePart&)>& visit);
/// The same, with a view into the engine's memory.
void for_each_state(const Engine& engine,
                    StateExtent extent,
                    OwnStates own,
                    const std::function<void(const StatePart&, CheckpointTensor)>& visit);

/// Every parameter's master and the optimizer's moments, as views into the engine's memory, under
/// the names that a checkpoint has them.
std::vector<CheckpointTensor> state_tensors(const Engine& engine,
                                            StateExtent extent,
                                            OwnStates own = {});
/// The masters among them, all that this rank updates.
std::vector<CheckpointTensor> parameter_tensors(const Engine& engine);

}  // namespace dstrain
