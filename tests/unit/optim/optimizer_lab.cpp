#include "tests/unit/optim/optimizer_lab.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>

#include <catch2/catch.hpp>

#include "kernels/backend.h"
#include "tests/harness/thread_world.h"

namespace dstrain::test {
namespace {

/// A flat tensor with memory of its own, zeros at first.
class OwnTensor {
 public:
  OwnTensor(DType dtype, std::int64_t numel)
      : bytes_(static_cast<std::size_t>(numel * size_of(dtype))),
        tensor_(numel == 0 ? nullptr : bytes_.data(), dtype, {numel}) {}
  OwnTensor(OwnTensor&&) = default;

  [[nodiscard]] const Tensor& tensor() const { return tensor_; }
  void set(std::int64_t i, double value) const {
    const auto at = static_cast<std::size_t>(i);
    const auto single = static_cast<float>(value);
    if (tensor_.dtype() == DType::kF32) {
      tensor_.as<float>()[at] = single;
    } else if (tensor_.dtype() == DType::kBF16) {
      tensor_.as<BF16>()[at] = to_bf16(single);
    } else {
      tensor_.as<F16>()[at] = to_f16(single);
    }
  }
  [[nodiscard]] Values values() const {
    Values values;
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor_.numel()); ++i) {
      values.push_back(tensor_.dtype() == DType::kF32    ? tensor_.as<float>()[i]
                       : tensor_.dtype() == DType::kBF16 ? to_float(tensor_.as<BF16>()[i])
                                                         : to_float(tensor_.as<F16>()[i]));
    }
    return values;
  }

 private:
  std::vector<std::byte> bytes_;
  Tensor tensor_;
};

/// How many elements of `range` have a moment.
std::int64_t extent(const UnitDecl& unit, Range range, MomentExtent moment) {
  std::int64_t count = 0;
  std::int64_t offset = 0;
  for (const ParamDecl& param : unit.params) {
    const std::int64_t end = offset + param.shape.numel();
    const bool has = moment == MomentExtent::kAll ||
                     (moment == MomentExtent::kNotHiddenMatrices && !param.hidden_matrix);
    const std::int64_t shared = std::min(end, range.end) - std::max(offset, range.begin);
    count += has ? std::max<std::int64_t>(0, shared) : 0;
    offset = end;
  }
  return count;
}

/// One rank's part of one unit.
struct OwnUnit {
  OwnUnit(const LabRun& run, const UnitDecl& unit, int index_, Range range_)
      : index(index_),
        range(range_),
        gradient(run.gradient, range.size()),
        master(run.master, range.size()),
        first(run.moments, extent(unit, range, moments_of(run.config).first)),
        second(run.moments, extent(unit, range, moments_of(run.config).second)),
        parameters(run.compute, run.compute == run.master ? 0 : range.size()) {}

  [[nodiscard]] UnitState state() const {
    return {.unit = index,
            .range = range,
            .gradient = gradient.tensor(),
            .master = master.tensor(),
            .first_moment = first.tensor(),
            .second_moment = second.tensor(),
            .parameters = parameters.tensor(),
            .noise_key = static_cast<std::uint32_t>(index)};
  }
  int index;
  Range range;
  OwnTensor gradient, master, first, second, parameters;
};

void append(std::vector<Values>& units, int unit, const OwnTensor& part) {
  const Values values = part.values();
  Values& whole = units.at(static_cast<std::size_t>(unit));
  whole.insert(whole.end(), values.begin(), values.end());
}

LabState run_rank(const LabModel& model, const LabRun& run, Communicator& group) {
  Blueprint blueprint = model.blueprint;
  const ShardMap shards(blueprint, Mesh({.data_inside = run.ranks}), group.rank());
  const OptimizerScratch scratch = declare_optimizer(run.config, shards, run.compute, blueprint);
  const MemoryPlan plan(blueprint, shards, {.training = false});
  const Backend backend = make_cpu_backend(1);
  Arena arena(blueprint, plan, *backend.device);
  const Site site{.ops = *backend.ops,
                  .device = *backend.device,
                  .stream = backend.device->compute_stream(),
                  .arena = arena};
  const auto optimizer =
      make_optimizer({.config = run.config,
                      .blueprint = blueprint,
                      .shards = shards,
                      .scratch = scratch,
                      .groups = {shards, {{kGradientAxes, &group, nullptr}}},
                      .signs = plan.options().signs,
                      .states = {.cut = run.ranks > 1 ? kGradientAxes : AxisSet{}}});
  std::vector<OwnUnit> own;
  std::vector<UnitState> states;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    const Range slice = shards.own_slice(unit);
    const Range range{slice.begin, std::max(slice.begin, std::min(slice.end, shards.numel(unit)))};
    own.emplace_back(run, blueprint.units()[static_cast<std::size_t>(unit)], unit, range);
    for (std::int64_t i = 0; i < range.size(); ++i) {
      own.back().master.set(i, model.start(unit, range.begin + i));
    }
    states.push_back(own.back().state());
  }
  for (std::int64_t update = 1; update <= run.updates; ++update) {
    for (const OwnUnit& unit : own) {
      for (std::int64_t i = 0; i < unit.range.size(); ++i) {
        unit.gradient.set(i, model.gradient(update, unit.index, unit.range.begin + i));
      }
    }
    std::vector<std::size_t> done;
    optimizer->update(site, states, run.params(update),
                      [&](std::size_t index) { done.push_back(index); });
    std::vector<std::size_t> all(states.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    check(done == all, "an update that did not tell of every unit once, in order");
  }
  const auto units = static_cast<std::size_t>(shards.num_units());
  LabState state{std::vector<Values>(units), std::vector<Values>(units), std::vector<Values>(units),
                 std::vector<Values>(units)};
  for (const OwnUnit& unit : own) {
    append(state.master, unit.index, unit.master);
    append(state.first_moment, unit.index, unit.first);
    append(state.second_moment, unit.index, unit.second);
    append(state.parameters, unit.index, unit.parameters);
  }
  return state;
}

}  // namespace

LabModel small_model() {
  LabModel model;
  Blueprint& blueprint = model.blueprint;
  blueprint.begin_unit("embedding");
  blueprint.add_param({.name = "table", .shape = {7, 3}, .rate_scale = 0.5});
  blueprint.begin_unit("blocks.0");
  blueprint.add_param({.name = "norm", .shape = {5}, .decays = false});
  blueprint.add_param({.name = "square", .shape = {5, 5}, .hidden_matrix = true});
  blueprint.add_param({.name = "bias", .shape = {3}, .decays = false});
  blueprint.add_param({.name = "wide", .shape = {3, 15}, .hidden_matrix = true, .rate_scale = 2.0});
  blueprint.add_param({.name = "tall", .shape = {9, 5}, .hidden_matrix = true});
  blueprint.add_param({.name = "last_bias", .shape = {9}, .decays = false, .rate_scale = 0.25});
  blueprint.begin_unit("seven");
  blueprint.add_param({.name = "vector", .shape = {7}, .decays = false});
  model.start = [](int unit, std::int64_t i) {
    return std::cos(static_cast<double>(7 * i * i + unit));
  };
  model.gradient = [](std::int64_t update, int unit, std::int64_t i) {
    return 0.1 * std::sin(static_cast<double>(3 * i * i + 5 * update + 11 * unit));
  };
  return model;
}

UpdateParams changing_params(std::int64_t update) {
  UpdateParams params{.learning_rate = 0.05 / static_cast<double>(update),
                      .update = update,
                      .gradient_scale = 0.5F,
                      .seed = 9};
  if (update == 2) {
    params.beta1 = 0.85;
    params.beta2 = 0.95;
  }
  return params;
}

LabState after_updates(const LabModel& model, const LabRun& run, CollectiveLog* log) {
  CollectiveLog unread;
  const std::vector<LabState> states = thread_world(run.ranks, [&](Rendezvous& rendezvous) {
    std::vector<int> members(static_cast<std::size_t>(run.ranks));
    std::iota(members.begin(), members.end(), 0);
    const bool logs = rendezvous.world_rank() == 0 && log != nullptr;
    RecordingCommunicator group(rendezvous.make_group("data", members), logs ? *log : unread);
    return run_rank(model, run, group);
  });
  LabState whole = states.front();
  for (std::size_t rank = 1; rank < states.size(); ++rank) {
    const auto join = [](std::vector<Values>& units, const std::vector<Values>& more) {
      for (std::size_t unit = 0; unit < units.size(); ++unit) {
        units[unit].insert(units[unit].end(), more[unit].begin(), more[unit].end());
      }
    };
    join(whole.master, states[rank].master);
    join(whole.first_moment, states[rank].first_moment);
    join(whole.second_moment, states[rank].second_moment);
    join(whole.parameters, states[rank].parameters);
  }
  return whole;
}

std::vector<ReferenceTensor> reference_start(const LabModel& model) {
  std::vector<ReferenceTensor> tensors;
  for (int unit = 0; unit < static_cast<int>(model.blueprint.units().size()); ++unit) {
    const UnitDecl& decl = model.blueprint.units()[static_cast<std::size_t>(unit)];
    std::int64_t offset = 0;
    for (const ParamDecl& param : decl.params) {
      const std::int64_t numel = param.shape.numel();
      Values p;
      for (std::int64_t i = 0; i < numel; ++i) {
        p.push_back(static_cast<float>(model.start(unit, offset + i)));
      }
      const Values zeros(p.size(), 0.0);
      tensors.push_back({&param, unit, offset, p, zeros, zeros});
      offset += numel;
    }
  }
  return tensors;
}

void check_master(const LabState& state,
                  const std::vector<ReferenceTensor>& expected,
                  double relative,
                  double absolute) {
  for (const ReferenceTensor& tensor : expected) {
    const Values& unit = state.master.at(static_cast<std::size_t>(tensor.unit));
    for (std::size_t i = 0; i < tensor.p.size(); ++i) {
      const double actual = unit.at(static_cast<std::size_t>(tensor.offset) + i);
      CAPTURE(tensor.decl->name, i, actual, tensor.p[i]);
      CHECK(std::abs(actual - tensor.p[i]) <= relative * std::abs(tensor.p[i]) + absolute);
    }
  }
}

}  // namespace dstrain::test
