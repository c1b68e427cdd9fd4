// Weights in 4 bits: what they go with, in a BitsAndBytesConfig's words.
#include <catch2/catch.hpp>

#include "tests/unit/config/parallel_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::string error_in_4_bits(std::vector<std::string> more, int ranks = 1) {
  more.insert(more.begin(),
              {"model.hidden_size=192", "model.intermediate_size=256",
               "quantization_config.load_in_4bit=true", "peft.target_modules=\"all-linear\"",
               "model.initial_weights=models/base"});
  return error_of(ranks, more);
}

TEST_CASE("weights lie in 4 bits beside adapters", "[config]") {
  CHECK(error_in_4_bits({}).empty());
  CHECK(error_in_4_bits({R"(quantization_config={"load_in_4bit": true, "load_in_8bit": false,
    "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true, "_load_in_4bit": true,
    "bnb_4bit_compute_dtype": "float32", "bnb_4bit_quant_storage": "uint8",
    "llm_int8_skip_modules": null, "llm_int8_threshold": 6.0, "quant_method": "bitsandbytes"})"})
            .empty());
  CHECK(error_in_4_bits(
            {"bf16.enabled=true", "quantization_config.bnb_4bit_compute_dtype=torch.bfloat16"})
            .empty());
  CHECK_FALSE(load_tiny({}).config.quantization.in_4_bits);
}

TEST_CASE("weights lie in 8 bits beside adapters", "[config]") {
  const std::vector<std::string> in_8_bits = {
      "quantization_config.load_in_8bit=true", "peft.target_modules=\"all-linear\"",
      "model.initial_weights=models/base", "quantization_config.llm_int8_threshold=6.0"};
  CHECK(error_of(1, in_8_bits).empty());
  CHECK_THAT(error_of(1, {"quantization_config.load_in_8bit=true"}), Contains("are not trained"));
}

TEST_CASE("weights in 4 bits that cannot be had are refused", "[config]") {
  CHECK_THAT(error_in_4_bits({"peft.target_modules=null"}), Contains("are not trained"));
  CHECK_THAT(error_in_4_bits({"model.initial_weights=null"}), Contains("model.initial_weights"));
  CHECK_THAT(error_in_4_bits({"model.intermediate_size=96"}),
             Contains("blocks.0.mlp.down.weight has 96 columns on a rank"));
  CHECK_THAT(error_in_4_bits({"tensor_parallel.size=2"}, 2),
             Contains("blocks.0.attention.output.weight has 96 columns on a rank"));
  CHECK_THAT(error_in_4_bits({"quantization_config.bnb_4bit_compute_dtype=bfloat16"}),
             Contains("the run computes in float32"));
  CHECK_THAT(error_in_4_bits({"quantization_config.bnb_4bit_quant_type=fp4"}),
             Contains("4 bits are NF4's"));
  CHECK_THAT(error_in_4_bits({"quantization_config.load_in_8bit=true"}),
             Contains("weights lie in 4 bits or in 8"));
}

}  // namespace
}  // namespace dstrain
