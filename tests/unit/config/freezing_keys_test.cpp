// training.freeze: which patterns are refused, and with what it does not go.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/config/parallel_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::string frozen_with(const std::string& patterns, std::vector<std::string> more = {}) {
  more.push_back("training.freeze=" + patterns);
  return error_of(1, more);
}

TEST_CASE("tensors that are not trained are named by patterns", "[config]") {
  const LoadedConfig loaded = load_tiny({R"(training.freeze=["embedding.*", "*.mlp.*"])"});
  const FrozenTensors& freeze = loaded.config.training.freeze;
  CHECK(freeze.patterns == std::vector<std::string>{"embedding.*", "*.mlp.*"});
  CHECK(freeze.covers("blocks.1.mlp.up.weight"));
  CHECK_FALSE(freeze.covers("blocks.1.attention.query.weight"));
  CHECK(load_tiny({"training.freeze=null"}).config.training.freeze == FrozenTensors{});
  CHECK(frozen_with(R"(["embedding.*", "blocks.[0-1].attention.*"])").empty());
  CHECK(frozen_with("[]").empty());
}

TEST_CASE("patterns that cannot be meant are refused", "[config]") {
  CHECK_THAT(error_of_tiny({"training.freeze=\"embedding.*\""}),
             Contains("must be a list of patterns of tensors' names"));
  CHECK_THAT(error_of_tiny({"training.freeze=[1]"}), Contains("found 1"));
  CHECK_THAT(error_of_tiny({"training.freeze=[\"\"]"}), Contains("must be a list of patterns"));
  CHECK_THAT(
      frozen_with(R"(["blocks.0.mpl.up.weight"])"),
      Contains("\"blocks.0.mpl.up.weight\" is the name of no tensor of the model; the nearest "
               "is \"blocks.0.mlp.up.weight\""));
  CHECK_THAT(frozen_with(R"(["*"])"), Contains("nothing would be trained"));
  CHECK_THAT(frozen_with(R"(["*.key.weight"])"),
             Contains("covers blocks.0.attention.key.weight and not "
                      "blocks.0.attention.query.weight, whose gradients one operation computes"));
}

TEST_CASE("what goes through all of a model goes with no frozen tensors", "[config]") {
  const std::string patterns = R"(["embedding.*"])";
  for (const char* const optimizer : {"Lamb", "Muon", "OneBitAdam"}) {
    CHECK_THAT(frozen_with(patterns, {std::string("optimizer.type=") + optimizer}),
               Contains("training.freeze: this optimizer.type goes through all of a model"));
  }
  CHECK_THAT(frozen_with(patterns, {"gradient_compression.kind=top_k"}),
             Contains("training.freeze: gradient_compression goes through all of a model"));
  CHECK_THAT(frozen_with(patterns, {"zero_optimization.stage=2",
                                    R"(zero_optimization.offload_optimizer={"device": "cpu"})"}),
             Contains("training.freeze: with states or parameters offloaded"));
}

}  // namespace
}  // namespace dstrain
