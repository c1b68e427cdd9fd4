// OwnedUpdate: the end of every stage's step, on what this rank owns of each unit: gradients that
// several tensor-parallel ranks computed parts of are summed; the norm over all ranks; clipping;
// the optimizer.
#pragma once

#include <vector>

#include "engine/parallel/data_parallel.h"

namespace dstrain {

class OwnedUpdate {
 public:
  /// What `parts` refers to outlives this.
  explicit OwnedUpdate(const DataParallelParts& parts);

  /// `updated(i)` as in Optimizer::update. If the norm is not finite, nothing is changed; all ranks
  /// see the same norm and so agree.
  StepStats step(const StepParams& params, const Optimizer::UnitUpdated& updated);
  /// Casts the master of what this rank owns into the parameters, where the two are not the same.
  void copy_master_to_parameters() const;

 private:
  /// Gradients to be summed over one group.
  struct Replicas {
    Communicator* group;
    std::vector<Tensor> gradients;
    std::int64_t elements = 0;
  };
  void declare_state(int unit);
  void find_replicas(const UnitState& state);
  Replicas& replicas_of(Communicator* group);
  void sum_replicas(const Replicas& replicas);
  double gradient_norm();

  DataParallelParts parts_;
  std::vector<UnitState> states_;     // of all units, in order
  std::vector<ConstTensor> counted_;  // gradients whose squares this rank adds to the norm
  std::vector<Replicas> replicas_;
};

}  // namespace dstrain
