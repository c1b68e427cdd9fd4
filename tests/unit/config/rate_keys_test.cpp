// Tests of the parts of the learning rate that tensors are trained with: optimizer.params.lr_scale
// and lr_layer_decay.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/config/parallel_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::string scaled_with(const std::string& scales, std::vector<std::string> more = {}) {
  more.push_back("optimizer.params.lr_scale=" + scales);
  return error_of(1, more);
}

TEST_CASE("rates of tensors follow their patterns and their layer", "[config]") {
  const TensorRates plain = load_tiny({}).config.rates;
  CHECK(plain == TensorRates{});
  CHECK(plain.of("blocks.1.mlp.up.weight", 2) == 1.0);
  const TensorRates rates =
      load_tiny({R"(optimizer.params.lr_scale={"*.mlp.*": 4, "head*": "0.5"})",
                 "optimizer.params.lr_layer_decay=0.5"})
          .config.rates;
  CHECK(rates.of("head.weight", 12) == 0.5);
  CHECK(rates.of("final_norm.weight", 12) == 1.0);
  CHECK(rates.of("blocks.11.attention.query.weight", 12) == 0.5);
  CHECK(rates.of("blocks.11.mlp.up.weight", 12) == 2.0);
  CHECK(rates.of("blocks.9.mlp.up.weight", 12) == 0.5);
  CHECK(rates.of("embedding.token.weight", 2) == 0.125);
}

TEST_CASE("rates that cannot be meant are refused", "[config]") {
  CHECK(scaled_with(R"({"*.mlp.*": 2, "embedding.*": 0.1})").empty());
  CHECK(scaled_with("{}").empty());
  CHECK_THAT(error_of_tiny({"optimizer.params.lr_scale=0.5"}),
             Contains("must be an object of patterns of tensors' names"));
  for (const char* const scale : {"0", "-1", "true", "\"fast\"", "1e9"}) {
    CHECK_THAT(error_of_tiny({fmt::format(R"(optimizer.params.lr_scale={{"*": {}}})", scale)}),
               Contains("\"*\" must have a number above 0"));
  }
  CHECK_THAT(scaled_with(R"({"blocks.0.mpl.up.weight": 2})"),
             Contains("is the name of no tensor that is trained; the nearest is "
                      "\"blocks.0.mlp.up.weight\""));
  CHECK_THAT(scaled_with(R"({"*.up.*": 2, "blocks.1.*": 3})"),
             Contains("\"*.up.*\" and \"blocks.1.*\" both cover blocks.1.mlp.up.weight"));
  CHECK_THAT(error_of_tiny({"optimizer.params.lr_layer_decay=0"}), Contains("lr_layer_decay"));
  CHECK_THAT(error_of_tiny({"optimizer.params.lr_layer_decay=1.5"}), Contains("lr_layer_decay"));
}

TEST_CASE("only what is trained has a rate", "[config]") {
  CHECK_THAT(scaled_with(R"({"embedding.*": 2})", {R"(training.freeze=["embedding.*"])"}),
             Contains("\"embedding.*\" is the name of no tensor that is trained"));
  const std::string adapters = R"(peft={"target_modules": "all-linear"})";
  CHECK(scaled_with(R"({"*.lora_b": 16})", {adapters}).empty());
  CHECK_THAT(scaled_with(R"({"*.mlp.up.weight": 16})", {adapters}),
             Contains("is the name of no tensor that is trained; the nearest is"));
}

}  // namespace
}  // namespace dstrain
