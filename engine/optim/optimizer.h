// Optimizer: updates what a rank owns of every unit. The results do not depend on the ranges, so
// that ranks may share the work in any way; an optimizer that must see a whole tensor (LAMB's
// norms, Muon's matrices) asks the group for what lies elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/config/optimizer_config.h"
#include "engine/plan/gradient_travel.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/shard_map.h"
#include "engine/runtime/site.h"
#include "engine/runtime/unit_groups.h"

namespace dstrain {

/// The moments that an optimizer keeps beside the parameters, and their names in checkpoints.
struct Moments {
  MomentExtent first = MomentExtent::kNone;
  MomentExtent second = MomentExtent::kNone;
  const char* first_name = "";   ///< "exp_avg", "momentum_buffer"
  const char* second_name = "";  ///< "exp_avg_sq", "sum"
  const char* third_name = "";   ///< of all elements; "": there is none
};
Moments moments_of(const OptimizerConfig& config);

/// The part of one unit that one rank updates. All tensors are flat and cover exactly `range`, but
/// for a moment of extent kNotHiddenMatrices, which covers only those elements, in order.
struct UnitState {
  int unit = 0;
  Range range;           ///< of the unit's flat buffer, without padding; may be empty
  ConstTensor gradient;  ///< f32, or the dtype that gradients are accumulated in
  Tensor master;         ///< f32, or bf16 (FormatConfig::bf16_master)
  Tensor first_moment;   ///< f32 or bf16
  Tensor second_moment;  ///< f32 or bf16
  Tensor third_moment;   ///< f32
  Tensor parameters;     ///< the compute copy; empty where master is what the model computes with
  /// The key of its random numbers: the same for a unit in every layout, whatever its index on a
  /// rank.
  std::uint32_t noise_key = 0;
};

struct UpdateParams {
  double learning_rate = 0.0;
  std::optional<double> beta1;  ///< OneCycle's momentum; absent: the config's
  std::optional<double> beta2;  ///< OneCycle's as well
  std::int64_t update = 1;      ///< optimizer updates, this one included
  /// Multiplies gradients: clipping, loss scale, mean over ranks. Where they are not summed, it
  /// makes them this rank's own, of the mean loss over its samples.
  float gradient_scale = 1.0F;
  std::uint64_t seed = 0;  ///< of stochastic rounding
};

class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// Updates `units`, which are all units in order, the same call on every rank of their groups; an
  /// optimizer that looks at single elements also takes parts of units, in any order.
  /// `site` is that of the space that their tensors lie in. `updated(i)` is called once the new
  /// parameters of units[i] are enqueued on the site's stream.
  using UnitUpdated = std::function<void(std::size_t index)>;
  virtual void update(const Site& site,
                      std::span<const UnitState> units,
                      const UpdateParams& params,
                      const UnitUpdated& updated) = 0;

  /// Makes a unit's parameters of its state, where they are not the master themselves and have been
  /// read from elsewhere.
  virtual void refresh_parameters(const Site& site, const UnitState& unit) {
    site.ops.cast(unit.master, unit.parameters, site.stream);
  }

  /// The numbers beside tensors of the parameters' shapes that later updates depend on, by name,
  /// for checkpoints: of the units of this rank, and the same on the ranks that share them. No
  /// update may be under way.
  using Numbers = std::map<std::string, std::vector<double>>;
  [[nodiscard]] virtual Numbers numbers(const Site& /*site*/) const { return {}; }
  /// Takes up what a checkpoint has of them, perhaps nothing, perhaps of other units too.
  virtual void restore(const Site& /*site*/, const Numbers& /*numbers*/) {}
};

/// Scratch that an optimizer needs, declared before anything is allocated.
struct OptimizerScratch {
  std::vector<BufferRef> buffers;  ///< in an order of the optimizer's own
};
OptimizerScratch declare_optimizer(const OptimizerConfig& config,
                                   const ShardMap& shards,
                                   DType compute,
                                   Blueprint& blueprint);

/// What an optimizer is made of; the references outlive it.
struct OptimizerParts {
  const OptimizerConfig& config;
  const Blueprint& blueprint;
  const ShardMap& shards;
  OptimizerScratch scratch;
  UnitGroups groups;                       ///< the ranks among which states are cut
  const std::optional<SignLayout>& signs;  ///< of what travels among them
  Place states;  ///< where they are cut, UnitState::range is this rank's slice
};
std::unique_ptr<Optimizer> make_optimizer(const OptimizerParts& parts);

}  // namespace dstrain
