#include "engine/runtime/fp8_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dstrain {
namespace {

float largest_of(DType dtype) {
  check(dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2, "a scale for {}", name_of(dtype));
  return dtype == DType::kF8E4M3 ? F8Format<F8E4M3>::kLargest : F8Format<F8E5M2>::kLargest;
}

}  // namespace

Fp8Scales::Fp8Scales(std::vector<ScaledTensorDecl> whole_model,
                     const Blueprint& blueprint,
                     Tensor amax,
                     Tensor scales,
                     Ops& ops,
                     Device& device,
                     const Options& options)
    : whole_model_(std::move(whole_model)),
      histories_(whole_model_.size()),
      amax_(amax),
      scales_(scales),
      ops_(ops),
      device_(device),
      options_(options),
      on_host_(blueprint.scaled_tensors().size() * kPlace, 1.0F) {
  check(options.history >= 1, "a history of {} steps", options.history);
  for (const ScaledTensorDecl& decl : blueprint.scaled_tensors()) {
    const auto found = std::find(whole_model_.begin(), whole_model_.end(), decl);
    check(found != whole_model_.end(), "{} is not of the whole model", decl.name);
    mine_.push_back(static_cast<std::size_t>(found - whole_model_.begin()));
  }
  unknown_ = static_cast<std::int64_t>(mine_.size());
  begin_step(device.compute_stream());  // an evaluation may come before the first step
}

void Fp8Scales::quantize(int tensor, ConstTensor x_RC, Tensor q_RC, Tensor q_CR, Stream& stream) {
  if (!histories_[mine_[static_cast<std::size_t>(tensor)]].exponent()) {
    measure(tensor, x_RC, stream);
  }
  ops_.quantize({.x_RC = x_RC,
                 .scale = scale(tensor),
                 .q_RC = q_RC,
                 .q_CR = q_CR,
                 .amax = amax_.flat(tensor, tensor + 1)},
                stream);
}

void Fp8Scales::measure(int tensor, ConstTensor x_RC, Stream& stream) {
  const Tensor amax = amax_.flat(tensor, tensor + 1);
  ops_.quantize({.x_RC = x_RC, .scale = {}, .q_RC = {}, .q_CR = {}, .amax = amax}, stream);
  float seen = 0.0F;  // in this step so far
  device_.copy_to_host(amax, &seen, stream);
  stream.synchronize();
  float& on_host = on_host_[static_cast<std::size_t>(tensor * kPlace)];
  if (seen > 0.0F && std::isfinite(seen)) {
    const ScaledTensorDecl& decl = whole_model_[mine_[static_cast<std::size_t>(tensor)]];
    on_host = scale_of(AmaxHistory::exponent_of(seen, largest_of(decl.dtype)), 1.0);
  } else {
    on_host = 1.0F;  // for zeros, or for numbers that no scale helps
  }
  device_.copy_from_host(&on_host, place_of(tensor), stream);
  stream.synchronize();
}

float Fp8Scales::scale_of(std::int32_t exponent, double factor) const {
  // Within this range every number of both formats times the scale is a normal bf16 number.
  constexpr int kMost = 110;
  const auto powers = static_cast<int>(std::ceil(std::log2(factor)));
  return std::ldexp(1.0F, std::clamp(exponent + options_.margin + powers, -kMost, kMost));
}

double Fp8Scales::factor_of(DType dtype) const {
  return dtype == DType::kF8E5M2 ? options_.gradient_factor : 1.0;
}

bool Fp8Scales::is_new() const {
  return std::all_of(histories_.begin(), histories_.end(),
                     [](const AmaxHistory& history) { return history.peaks().empty(); });
}

void Fp8Scales::begin_step(Stream& stream) {
  ops_.zero(amax_, stream);
}

std::vector<float> Fp8Scales::maxima(Stream& stream) const {
  std::vector<float> of_mine(mine_.size());
  device_.copy_to_host(amax_, of_mine.data(), stream);
  stream.synchronize();
  std::vector<float> all(whole_model_.size(), 0.0F);
  for (std::size_t i = 0; i < mine_.size(); ++i) {
    const double factor = factor_of(whole_model_[mine_[i]].dtype);
    all[mine_[i]] = std::isfinite(of_mine[i])
                        ? static_cast<float>(static_cast<double>(of_mine[i]) / factor)
                        : std::numeric_limits<float>::infinity();
  }
  return all;
}

void Fp8Scales::end_step(const std::vector<float>& maxima, Stream& stream) {
  check(maxima.size() == histories_.size(), "{} maxima of {} tensors", maxima.size(),
        histories_.size());
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    histories_[i].add_step(maxima[i], largest_of(whole_model_[i].dtype), options_.history);
  }
  follow_histories(stream);
}

/// Tensors without a history keep their scale: they are measured before it is used.
void Fp8Scales::follow_histories(Stream& stream) {
  unknown_ = 0;
  for (std::size_t i = 0; i < mine_.size(); ++i) {
    if (const auto exponent = histories_[mine_[i]].exponent()) {
      on_host_[i * kPlace] = scale_of(*exponent, factor_of(whole_model_[mine_[i]].dtype));
    } else {
      ++unknown_;
    }
  }
  device_.copy_from_host(on_host_.data(), scales_, stream);
}

Fp8Scales::State Fp8Scales::state() const {
  State state;
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    if (!histories_[i].peaks().empty()) {
      state.emplace(whole_model_[i].name, histories_[i].peaks());
    }
  }
  return state;
}

void Fp8Scales::restore(const State& state, Stream& stream) {
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    const auto found = state.find(whole_model_[i].name);
    histories_[i] = found == state.end() ? AmaxHistory() : AmaxHistory(found->second);
  }
  follow_histories(stream);
}

}  // namespace dstrain
