#include "engine/runtime/fp8_scales.h"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/backend.h"

namespace dstrain {
namespace {

/// A rank that has two of a model's three tensors.
struct Rank {
  static std::vector<ScaledTensorDecl> model() {
    return {{"a", DType::kF8E4M3}, {"b", DType::kF8E4M3}, {"c", DType::kF8E5M2}};
  }
  explicit Rank(const Fp8Scales::Options& options) {
    blueprint.add_scaled_tensor(model()[2]);
    blueprint.add_scaled_tensor(model()[0]);
    scales = std::make_unique<Fp8Scales>(model(), blueprint, Tensor(amax, DType::kF32, {2}),
                                         Tensor(scale, DType::kF32, {2, Fp8Scales::kPlace}),
                                         *backend.ops, *backend.device, options);
  }
  /// `values` in 8 bits, as numbers without their scale.
  std::vector<float> quantize(int tensor, std::vector<float> values) {
    const auto n = static_cast<std::int64_t>(values.size());
    const DType dtype = blueprint.scaled_tensors()[static_cast<std::size_t>(tensor)].dtype;
    std::vector<std::uint8_t> q(values.size());
    scales->quantize(tensor, {values.data(), DType::kF32, {1, n}}, {q.data(), dtype, {1, n}}, {},
                     stream());
    std::vector<float> numbers;
    for (const std::uint8_t bits : q) {
      numbers.push_back(dtype == DType::kF8E4M3 ? to_float(F8E4M3{bits}) : to_float(F8E5M2{bits}));
    }
    return numbers;
  }
  void end_step() { scales->end_step(scales->maxima(stream()), stream()); }
  Stream& stream() { return backend.device->compute_stream(); }

  Backend backend = make_cpu_backend(1);
  Blueprint blueprint;
  float amax[2] = {NAN, NAN};
  float scale[2 * Fp8Scales::kPlace] = {};
  std::unique_ptr<Fp8Scales> scales;
};

TEST_CASE("the first step measures, later ones look back", "[runtime][fp8]") {
  Rank rank({.history = 2, .margin = 0});
  CHECK(rank.scales->measures());
  rank.scales->begin_step(rank.stream());
  // Tensor 1 is "a": E4M3, 3.5 = 448 / 128.
  CHECK(rank.quantize(1, {3.5F, -1.0F}) == std::vector<float>{448.0F, -128.0F});
  CHECK(rank.scale[Fp8Scales::kPlace] == 0x1p-7F);
  // The next micro-batch of the first step has larger ones: it is measured as well.
  CHECK(rank.quantize(1, {7.0F}) == std::vector<float>{448.0F});
  CHECK(rank.quantize(0, {57344.0F}) == std::vector<float>{57344.0F});
  const std::vector<float> maxima = rank.scales->maxima(rank.stream());
  CHECK(maxima == std::vector<float>{7.0F, 0.0F, 57344.0F});
  rank.scales->end_step(maxima, rank.stream());
  CHECK_FALSE(rank.scales->measures());

  // Now the scale is the one before's, 2⁻⁶, and what is larger saturates; and is remembered.
  rank.scales->begin_step(rank.stream());
  CHECK(rank.quantize(1, {1.0F, 1000.0F}) == std::vector<float>{64.0F, 448.0F});
  rank.end_step();
  CHECK(rank.scale[Fp8Scales::kPlace] == 4.0F);
  // Two steps remember it, the third does not.
  for (const float expected : {4.0F, 0x1p-7F}) {
    rank.scales->begin_step(rank.stream());
    rank.quantize(1, {3.5F});
    rank.end_step();
    CHECK(rank.scale[Fp8Scales::kPlace] == expected);
  }
}

TEST_CASE("a margin leaves room above", "[runtime][fp8]") {
  Rank rank({.history = 1, .margin = 3});
  rank.scales->begin_step(rank.stream());
  CHECK(rank.quantize(1, {448.0F}) == std::vector<float>{56.0F});
  rank.end_step();
  CHECK(rank.scale[Fp8Scales::kPlace] == 8.0F);
}

TEST_CASE("gradients of another layout have the scales of their own", "[runtime][fp8]") {
  Rank alone({.history = 2, .margin = 0});
  Rank shared({.history = 2, .margin = 0, .gradient_factor = 8.0});
  const auto train = [](Rank& rank, float gradient) {
    rank.scales->begin_step(rank.stream());
    rank.quantize(0, {gradient});
    rank.quantize(1, {448.0F});
    rank.end_step();
  };
  train(alone, 57344.0F);
  train(shared, 8.0F * 57344.0F);
  CHECK(alone.scale[0] == 1.0F);
  CHECK(shared.scale[0] == 8.0F);
  CHECK(shared.scale[1] == 1.0F);
  CHECK(shared.scales->state() == alone.scales->state());
  alone.scales->restore(shared.scales->state(), alone.stream());
  CHECK(alone.scale[0] == 1.0F);
}

TEST_CASE("what memory held before the first step is not taken for a magnitude", "[runtime][fp8]") {
  Rank rank({.history = 1, .margin = 0});  // whose amax held NaN
  CHECK(rank.quantize(1, {3.5F}) == std::vector<float>{448.0F});
}

TEST_CASE("no scale leaves the range of bf16", "[runtime][fp8]") {
  Rank rank({.history = 1, .margin = 20, .gradient_factor = 4096.0});
  rank.scales->begin_step(rank.stream());
  rank.quantize(0, {3e38F});
  rank.end_step();
  CHECK(rank.scale[0] == 0x1p110F);
}

TEST_CASE("what is not finite changes no scale", "[runtime][fp8]") {
  Rank rank({.history = 1, .margin = 0});
  rank.scales->begin_step(rank.stream());
  rank.quantize(1, {448.0F});
  rank.end_step();
  CHECK(rank.scale[Fp8Scales::kPlace] == 1.0F);
  rank.scales->begin_step(rank.stream());
  CHECK(std::isnan(rank.quantize(1, {std::numeric_limits<float>::infinity()})[0]));
  CHECK(std::isinf(rank.scales->maxima(rank.stream())[0]));
  rank.end_step();
  CHECK(rank.scale[Fp8Scales::kPlace] == 1.0F);
  CHECK(rank.scales->measures());  // the one step that is remembered has said nothing
}

TEST_CASE("a state continues where it was taken", "[runtime][fp8]") {
  Rank first({.history = 3, .margin = 0});
  first.scales->begin_step(first.stream());
  first.quantize(1, {5.0F});
  first.quantize(0, {1e-4F});
  first.end_step();
  const Fp8Scales::State state = first.scales->state();
  CHECK(state.size() == 2);  // nobody has seen "b"

  Rank second({.history = 3, .margin = 0});
  second.scales->restore(state, second.stream());
  CHECK_FALSE(second.scales->measures());
  for (Rank* rank : {&first, &second}) {
    rank->scales->begin_step(rank->stream());
    rank->quantize(1, {2.0F});
    rank->quantize(0, {3e-4F});
    rank->end_step();
  }
  CHECK(second.scales->state() == first.scales->state());
  CHECK(second.scale[0] == first.scale[0]);
  CHECK(second.scale[1] == first.scale[1]);

  second.scales->restore({}, second.stream());
  CHECK(second.scales->measures());
}

}  // namespace
}  // namespace dstrain
