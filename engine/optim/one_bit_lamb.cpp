// 1-bit LAMB (Li et al. 2021, arXiv 2104.06069), as DeepSpeed 0.19 computes it.
//   up to freeze_step   gradients are summed over the ranks; LAMB without bias correction; of each
//                       tensor's trust ratio a running mean
//   after it            momenta travel as 1-bit Adam's do (one_bit_adam.cpp). The variance of the
//                       update stays as it is; a fresh one goes on, from the gradients that two
//                       momenta imply, and says by how much the running mean of ratios is scaled
// DeepSpeed codes all tensors as one row, each multiplied by a factor that makes their momenta
// alike in size. Here every tensor has a scale of its own, with which such a factor cancels. Per
// parameter: LAMB's, 4 bytes for the fresh variance, 4 of what is unsent, with 4/n for n ranks as a
// server.
#include <numeric>
#include <utility>

#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/sign_exchange.h"
#include "engine/optim/unit_segments.h"

namespace dstrain {
namespace {

constexpr std::int64_t kSums = 3;          // of a tensor: more than LAMB's own two
constexpr std::int64_t kCoefficients = 2;  // likewise: mean trust ratio, factor of the last update
constexpr const char* kName = "trust ratio and factor of ";

class OneBitLamb final : public Optimizer {
 public:
  explicit OneBitLamb(const OptimizerParts& parts)
      : config_(parts.config),
        blueprint_(parts.blueprint),
        exchange_(parts, parts.scratch.buffers.at(0)),
        sums_(parts.scratch.buffers.at(1)),
        coefficients_(parts.scratch.buffers.at(2)),
        tensors_(parts.blueprint, parts.config.decay, Join::kNever) {}

  void update(const Site& site,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) override {
    if (!has_begun_) restore(site, {});
    if (travel_of(config_, params.update) == GradientTravel::kSummed) {
      warm_up(site, units, params);
    } else {
      exchange_.exchange_momenta(site, units, params.beta1.value_or(config_.beta1),
                                 params.gradient_scale);
      scale_updates(site, units, params);
    }
    for (std::size_t i = 0; i < units.size(); ++i) {
      updated(i);
    }
  }

  [[nodiscard]] Numbers numbers(const Site& site) const override {
    Numbers numbers;
    if (!has_begun_) return numbers;
    const Tensor held = site.buffer(coefficients_);
    std::vector<double> host(static_cast<std::size_t>(held.numel()));
    site.device.copy_to_host(held, host.data(), site.stream);
    site.stream.synchronize();
    auto next = host.begin();
    for_each_name([&](const std::string& name) {
      numbers[kName + name] = {next, next + kCoefficients};
      next += kCoefficients;
    });
    return numbers;
  }
  void restore(const Site& site, const Numbers& numbers) override {
    std::vector<double> host;
    for_each_name([&](const std::string& name) {
      const auto found = numbers.find(kName + name);
      const std::vector<double> begun{0.0, 1.0};
      const std::vector<double>& two = found == numbers.end() ? begun : found->second;
      host.insert(host.end(), {two.at(0), two.at(1)});
    });
    site.device.copy_from_host(host.data(), site.buffer(coefficients_), site.stream);
    site.stream.synchronize();
    has_begun_ = true;
  }

 private:
  template <typename Visit>
  void for_each_name(Visit&& visit) const {
    for (const UnitDecl& unit : blueprint_.units()) {
      for (const ParamDecl& param : unit.params) {
        visit(param.name);
      }
    }
  }

  /// Calls visit(tensors, its segment, index among all tensors) for each parameter.
  template <typename Visit>
  void for_each_tensor(std::span<const UnitState> units,
                       const UpdateParams& params,
                       Visit&& visit) const {
    std::int64_t index = 0;
    for (const UnitState& unit : units) {
      for (const UnitSegment& tensor : tensors_.of(unit.unit)) {
        visit(tensors_of(unit, tensor.range, params), tensor, index);
        ++index;
      }
    }
  }
  [[nodiscard]] double decay_of(const UnitSegment& tensor) const {
    return tensor.decays ? config_.weight_decay : 0.0;
  }
  [[nodiscard]] Tensor coefficients(const Site& site, std::int64_t tensor) const {
    return site.buffer(coefficients_).flat(tensor * kCoefficients, (tensor + 1) * kCoefficients);
  }

  void warm_up(const Site& site, std::span<const UnitState> units, const UpdateParams& params) {
    for_each_tensor(units, params,
                    [&](OptimizerTensors tensors, const UnitSegment& tensor, std::int64_t index) {
                      const LambStep step{.learning_rate = params.learning_rate * tensor.rate_scale,
                                          .beta1 = params.beta1.value_or(config_.beta1),
                                          .beta2 = params.beta2.value_or(config_.beta2),
                                          .epsilon = config_.epsilon,
                                          .weight_decay = decay_of(tensor),
                                          .max_coeff = config_.max_coeff,
                                          .min_coeff = config_.min_coeff,
                                          .gradient_scale = params.gradient_scale};
                      const Tensor fresh = std::exchange(tensors.third_moment, {});
                      const Tensor squares =
                          site.buffer(sums_).flat(index * kSums, index * kSums + 2);
                      site.ops.lamb_moments(step, tensors, squares, site.stream);
                      site.ops.remember_trust_ratio(step, config_.coeff_beta, squares,
                                                    coefficients(site, index), site.stream);
                      site.ops.lamb_apply(step, tensors, squares, site.stream);
                      if (params.update == config_.freeze_step) {
                        site.ops.cast(tensors.second_moment, fresh, site.stream);
                      }
                    });
  }

  void scale_updates(const Site& site,
                     std::span<const UnitState> units,
                     const UpdateParams& params) {
    for_each_tensor(
        units, params,
        [&](const OptimizerTensors& tensors, const UnitSegment& tensor, std::int64_t index) {
          const OneBitLambStep step{.learning_rate = params.learning_rate * tensor.rate_scale,
                                    .beta1 = params.beta1.value_or(config_.beta1),
                                    .beta2 = params.beta2.value_or(config_.beta2),
                                    .epsilon = config_.epsilon,
                                    .weight_decay = decay_of(tensor),
                                    .factor_max = config_.factor_max,
                                    .factor_min = config_.factor_min,
                                    .factor_threshold = config_.factor_threshold};
          const Tensor sums = site.buffer(sums_).flat(index * kSums, (index + 1) * kSums);
          site.ops.one_bit_lamb_moments(step, tensors, sums, site.stream);
          site.ops.one_bit_lamb_apply(step, tensors, sums, coefficients(site, index), site.stream);
        });
  }

  const OptimizerConfig& config_;
  const Blueprint& blueprint_;
  SignExchange exchange_;
  BufferRef sums_;
  BufferRef coefficients_;
  UnitSegments tensors_;
  bool has_begun_ = false;  // the coefficients hold something
};

}  // namespace

OptimizerScratch declare_one_bit_lamb(Blueprint& blueprint) {
  const auto tensors =
      std::accumulate(blueprint.units().begin(), blueprint.units().end(), std::int64_t{0},
                      [](std::int64_t total, const UnitDecl& unit) {
                        return total + static_cast<std::int64_t>(unit.params.size());
                      });
  OptimizerScratch scratch = SignExchange::declare(blueprint);
  scratch.buffers.push_back(
      blueprint.add_buffer({"lamb_sums", {kSums * tensors}, DType::kF64, Lifetime::kScratch}));
  scratch.buffers.push_back(blueprint.add_buffer(
      {"lamb_coefficients", {kCoefficients * tensors}, DType::kF64, Lifetime::kConstant}));
  return scratch;
}

std::unique_ptr<Optimizer> make_one_bit_lamb(const OptimizerParts& parts) {
  return std::make_unique<OneBitLamb>(parts);
}

}  // namespace dstrain
