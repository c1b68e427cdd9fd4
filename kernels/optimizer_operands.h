// Turns an optimizer's tensors into what its loop gets, with the checks that all devices share.
#pragma once

#include <string_view>

#include "kernels/core/expect.h"
#include "kernels/math/optimizer_range.h"
#include "kernels/optimizers.h"

namespace dstrain {

inline FloatFormat format_of(const ConstTensor& tensor, std::string_view name) {
  expect_compute_dtype(tensor.dtype(), name);
  switch (tensor.dtype()) {
    case DType::kBF16:
      return FloatFormat::kBF16;
    case DType::kF16:
      return FloatFormat::kF16;
    default:
      return FloatFormat::kF32;
  }
}

/// A tensor of any of the formats, with `numel` elements.
inline ConstFloats floats(const ConstTensor& tensor, std::string_view name, std::int64_t numel) {
  const FloatFormat format = format_of(tensor, name);
  expect(tensor, name, tensor.dtype(), numel);
  return {tensor.data(), format};
}
inline Floats floats(const Tensor& tensor, std::string_view name, std::int64_t numel) {
  return {tensor.data(), floats(ConstTensor(tensor), name, numel).format};
}
/// A state that an optimizer keeps, for which f16 has too small a range.
inline Floats state(const Tensor& tensor, std::string_view name, std::int64_t numel) {
  check(tensor.dtype() != DType::kF16, "{} is f16, expected f32 or bf16", name);
  return floats(tensor, name, numel);
}
constexpr Floats kNoFloats{nullptr, FloatFormat::kF32};

inline OptimizerRange range_of(const OptimizerTensors& tensors) {
  const std::int64_t n = tensors.master.numel();
  const Tensor& first = tensors.first_moment;
  const Tensor& second = tensors.second_moment;
  const Tensor& third = tensors.third_moment;
  const Tensor& copy = tensors.parameters;
  return {.gradient = floats(tensors.gradient, "gradient", n),
          .master = state(tensors.master, "master", n),
          .first_moment = first.empty() ? kNoFloats : state(first, "first moment", n),
          .second_moment = second.empty() ? kNoFloats : state(second, "second moment", n),
          .third_moment = third.empty() ? kNoFloats : state(third, "third moment", n),
          .parameters = copy.empty() ? kNoFloats : floats(copy, "parameters", n),
          .noise = tensors.noise};
}

enum class Moment : std::uint8_t { kNone, kFirst, kSecond, kBoth, kAll };

/// Checks that exactly the moments that the optimizer keeps are given.
inline void expect_moments(const OptimizerTensors& tensors,
                           Moment kept,
                           std::string_view operation) {
  const bool third = kept == Moment::kAll;
  const bool first = kept == Moment::kFirst || kept == Moment::kBoth || third;
  const bool second = kept == Moment::kSecond || kept == Moment::kBoth || third;
  check(tensors.master.numel() == 0 ||
            (tensors.first_moment.empty() != first && tensors.second_moment.empty() != second),
        "{}: {} a first moment and {} a second one", operation, first ? "wants" : "has not",
        second ? "wants" : "has not");
  check(tensors.master.numel() == 0 || tensors.third_moment.empty() != third,
        "{}: {} a third moment", operation, third ? "wants" : "has not");
}

struct Kept {
  const char* operation;  ///< for errors
  Moment moments;
};
inline Kept kept_by(const AdamwStep& /*step*/) {
  return {"adamw", Moment::kBoth};
}
/// The first moment is the buffer; none without momentum.
inline Kept kept_by(const SgdStep& step) {
  return {"sgd", step.momentum == 0.0 ? Moment::kNone : Moment::kFirst};
}
/// The second moment is the sum of squares.
inline Kept kept_by(const AdagradStep& /*step*/) {
  return {"adagrad", Moment::kSecond};
}
/// The first moment is the buffer, or where centered the mean gradient; the second one is the mean
/// of squares.
inline Kept kept_by(const RmspropStep& step) {
  return {"rmsprop", step.momentum == 0.0 && !step.centered ? Moment::kSecond : Moment::kBoth};
}
inline Kept kept_by(const LionStep& /*step*/) {
  return {"lion", Moment::kFirst};
}

inline Kept kept_by(const OneBitAdamStep& /*step*/) {
  return {"one_bit_adam", Moment::kBoth};
}
/// The third moment is the sum of rates times momenta since the ranks last agreed.
inline Kept kept_by(const LocalStep& /*step*/) {
  return {"local_step", Moment::kAll};
}
inline Kept kept_by(const SyncStep& /*step*/) {
  return {"sync_step", Moment::kAll};
}

inline void expect_f32_state(const OptimizerTensors& tensors, std::string_view operation) {
  for (const Tensor& tensor :
       {tensors.master, tensors.first_moment, tensors.second_moment, tensors.third_moment}) {
    check(tensor.dtype() == DType::kF32, "{}: master and moments are f32, not {}", operation,
          name_of(tensor.dtype()));
  }
}

/// What only some steps ask for.
template <typename Step>
void expect_more(const Step& /*step*/, const OptimizerTensors& /*tensors*/) {}
inline void expect_more(const OneBitAdamStep& step, const OptimizerTensors& tensors) {
  expect_f32_state(tensors, kept_by(step).operation);
}
inline void expect_more(const LocalStep& step, const OptimizerTensors& tensors) {
  expect_f32_state(tensors, kept_by(step).operation);
  check(tensors.master.numel() == 0 || !tensors.parameters.empty(),
        "{}: wants parameters, which differ from the master", kept_by(step).operation);
}
inline void expect_more(const SyncStep& step, const OptimizerTensors& tensors) {
  expect_f32_state(tensors, kept_by(step).operation);
}

/// Calls run(operation, step, range) with the step that is in it, once the tensors are checked.
template <typename Run>
void visit_update(const ElementwiseStep& step, const OptimizerTensors& tensors, Run&& run) {
  std::visit(
      [&](const auto& one) {
        const Kept kept = kept_by(one);
        expect_moments(tensors, kept.moments, kept.operation);
        expect_more(one, tensors);
        run(kept.operation, one, range_of(tensors));
      },
      step);
}

inline void expect_lamb(const OptimizerTensors& tensors, const ConstTensor& squares_2) {
  expect_moments(tensors, Moment::kBoth, "lamb");
  expect_f32_state(tensors, "lamb");
  expect(squares_2, "lamb: squares", DType::kF64, 2);
}

inline void expect_coefficients(const ConstTensor& squares_2, const ConstTensor& coefficients_2) {
  expect(squares_2, "remember_trust_ratio: squares", DType::kF64, 2);
  expect(coefficients_2, "remember_trust_ratio: coefficients", DType::kF64, 2);
}

inline void expect_one_bit_lamb(const OptimizerTensors& tensors, const ConstTensor& sums_3) {
  expect_moments(tensors, Moment::kAll, "one_bit_lamb");
  expect_f32_state(tensors, "one_bit_lamb");
  expect(sums_3, "one_bit_lamb: sums", DType::kF64, 3);
}

}  // namespace dstrain
