// An engine's parameters at step 0 are those that engine/model/init.h promises.
#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/model/init.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

TEST_CASE("parameters that are filled piece by piece are those of the whole tensor", "[train]") {
  ModelSpec model = tiny_model(Family::kGpt2);
  model.vocab_size = 60'001;  // 2.4 million elements: three pieces, the last one short
  const Precision precision = GENERATE(Precision::kF32, Precision::kBF16);
  const FormatConfig formats{.bf16_master = precision == Precision::kBF16};
  const Config config =
      tiny_config({.tied = true, .model = model, .precision = precision, .formats = formats}, 1);
  const auto world = make_local_rendezvous(1);
  Engine engine(make_run_plan(config, 1, 0), *world[0], make_cpu_backend(2), 2);
  std::int64_t largest = 0;
  for (const HeldPiece& held : held_state(engine)) {
    if (held.state != "parameter") {
      continue;
    }
    const auto& units = engine.plan().blueprint.units();
    const ParamDecl* declared = nullptr;
    for (const UnitDecl& unit : units) {
      for (const ParamDecl& param : unit.params) {
        declared = param.name == held.piece.tensor ? &param : declared;
      }
    }
    REQUIRE(declared != nullptr);
    std::vector<float> expected(held.values.size());
    initial_values(*declared, config.training.seed, 0, expected, 1);
    if (precision == Precision::kBF16) {
      std::transform(expected.begin(), expected.end(), expected.begin(),
                     [](float value) { return to_float(to_bf16(value)); });
    }
    CAPTURE(held.piece.tensor);
    CHECK(held.values == expected);
    largest = std::max(largest, static_cast<std::int64_t>(expected.size()));
  }
  CHECK(largest == 60'001 * 40);
}

}  // namespace
}  // namespace dstrain::test
