// What the tests of optimizers share: a small model whose state lies whole on one rank or in slices
// on several, and is updated a few times from gradients that are the same in either case.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/optim/optimizer.h"
#include "tests/harness/recording_communicator.h"

namespace dstrain::test {

using Values = std::vector<double>;

struct LabModel {
  Blueprint blueprint;
  std::function<double(int unit, std::int64_t element)> start;
  std::function<double(std::int64_t update, int unit, std::int64_t element)> gradient;
};
/// A table, a block with vectors and matrices of every shape, and a unit of seven parameters.
LabModel small_model();

struct LabRun {
  OptimizerConfig config;
  int ranks = 1;  ///< above one: sharded
  std::int64_t updates = 3;
  DType compute = DType::kF32;  ///< not f32: there is a copy beside the master
  DType gradient = DType::kF32;
  DType moments = DType::kF32;
  DType master = DType::kF32;
  std::function<UpdateParams(std::int64_t update)> params;
};
/// A changing rate, a scale, and betas from the schedule in the second update.
UpdateParams changing_params(std::int64_t update);

/// Whole units, put together from the ranks' slices. Empty if there is no such state.
struct LabState {
  std::vector<Values> master;
  std::vector<Values> first_moment;
  std::vector<Values> second_moment;
  std::vector<Values> parameters;
  friend bool operator==(const LabState&, const LabState&) = default;
};
/// `log` gets the traffic of rank 0.
LabState after_updates(const LabModel& model, const LabRun& run, CollectiveLog* log = nullptr);

/// One parameter in fp64, whole.
struct ReferenceTensor {
  const ParamDecl* decl;
  int unit;
  std::int64_t offset;  ///< in the unit
  Values p, m, v;
};
std::vector<ReferenceTensor> reference_start(const LabModel& model);
/// Compares every element of the master: |difference| ≤ relative · |expected| + absolute.
void check_master(const LabState& state,
                  const std::vector<ReferenceTensor>& expected,
                  double relative,
                  double absolute);

}  // namespace dstrain::test
