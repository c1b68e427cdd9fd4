// OwnedUpdate: the end of every strategy's step, on what this rank owns of each unit: gradients
// that several tensor-parallel ranks computed parts of are summed; the norm over all ranks;
// clipping; the optimizer; and where this rank holds a whole unit of which it owns a slice, the
// all-gather of its new parameters, while the next unit is updated. Where masters and moments lie
// in another space than the parameters, a StreamedUpdate does the optimizer's part, and goes on
// with it after step() has returned.
#pragma once

#include <memory>
#include <vector>

#include "engine/parallel/data_parallel.h"
#include "engine/parallel/streamed_update.h"

namespace dstrain {

class OwnedUpdate {
 public:
  /// What `parts` refers to outlives this. All-gathers run on `collectives`, which may be the
  /// compute stream.
  OwnedUpdate(const DataParallelParts& parts, Stream& collectives);

  /// If the norm is not finite, nothing is changed; all ranks see the same norm and so agree.
  StepStats step(const StepParams& params);
  /// The same where the gradients are already those of the mean loss, the same on all ranks.
  StepStats step_on_mean(const StepParams& params);
  /// Casts the master of what this rank owns into the parameters, where the two are not the same,
  /// and gathers what this rank holds whole.
  void refresh_parameters();
  /// Makes work that compute does after this find the unit's parameters new, and whole where this
  /// rank holds them whole.
  void wait_for(int unit);
  /// Makes work on `stream` after this find what this rank owns of the unit's parameters new, where
  /// they are updated beside the compute stream.
  void order_after(int unit, Stream& stream);
  /// The point after which an offloaded unit's parameters are where they belong; of no stream where
  /// they always are.
  [[nodiscard]] Event updated(int unit) const;
  [[nodiscard]] std::optional<OffloadedUpdate> last_offloaded() const {
    return streamed_ == nullptr ? std::nullopt : streamed_->last();
  }

 private:
  /// Gradients to be summed over one group.
  struct Replicas {
    Communicator* group;
    std::vector<Tensor> gradients;
    std::int64_t elements = 0;
  };
  [[nodiscard]] UnitState declare_state(int unit) const;
  void gather(int unit);
  void gather_streamed();
  void find_replicas(const UnitState& state);
  Replicas& replicas_of(Communicator* group);
  void sum_replicas(const Replicas& replicas);
  double gradient_norm(GradientTravel travel);
  StepStats update(const StepParams& params, double factor, GradientTravel travel);

  DataParallelParts parts_;
  Stream& collectives_;
  std::vector<Event> gathered_;               // by unit
  std::vector<UnitState> states_;             // of units whose states lie on the device, in order
  std::unique_ptr<StreamedUpdate> streamed_;  // of the others; nullptr: there are none
  /// Gradients whose squares this rank adds to the norm, by group of their units.
  std::vector<std::vector<ConstTensor>> counted_;
  std::vector<Replicas> replicas_;
};

}  // namespace dstrain
