// Models that are read and converted, but whose blocks cannot be computed.
#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

TEST_CASE("a model whose attention has sinks is refused before anything is planned", "[train]") {
  TinyOptions options;
  options.model = load_model_spec("tests/golden/huggingface/gpt-oss-bf16");
  const Config config = tiny_config(options, 1);
  CHECK_THROWS_AS(make_run_plan(config, 1, 0), ConfigError);
  CHECK_THROWS_WITH(make_run_plan(config, 1, 0),
                    Catch::Contains("attention has sinks") &&
                        Catch::Contains("neither trained nor run in this version"));
}

}  // namespace
}  // namespace dstrain::test
