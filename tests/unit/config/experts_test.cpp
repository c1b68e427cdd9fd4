// Feed-forwards that are mixtures of experts: their tensors, and what of them a token goes through.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/arch/architecture.h"
#include "engine/config/arch/model_counts.h"
#include "engine/config/arch/tensor_list.h"

namespace dstrain {
namespace {

// E 3, k 2, C 8, F 6 of an expert and 10 of a dense layer, V 11; biases of the feed-forwards.
ModelSpec two_layers() {
  ModelSpec model{.vocab_size = 11,
                  .hidden_size = 8,
                  .num_layers = 2,
                  .num_heads = 2,
                  .num_key_value_heads = 2,
                  .head_dim = 4,
                  .intermediate_size = 10,
                  .max_positions = 16,
                  .mlp_bias = true};
  model.experts = {.count = 3,
                   .per_token = 2,
                   .router_bias = true,
                   .shared_width = 5,
                   .balance_coefficient = 0.25F};
  model.expert_width = 6;
  model.expert_layers = {false, true};
  return model;
}

std::vector<TensorDecl> feed_forward_tensors(const ModelSpec& model, std::size_t layer) {
  const Architecture architecture(model);
  std::vector<TensorDecl> found;
  for (const TensorDecl& tensor : block_tensors(architecture, architecture.layers[layer], "")) {
    if (tensor.name.starts_with("mlp.")) found.push_back(tensor);
  }
  return found;
}

}  // namespace

TEST_CASE("gate and up of all experts lie together, and so do their down", "[spec][experts]") {
  struct Line {
    std::string name;
    Shape shape;
    Cut cut;
    bool of_expert;
  };
  const Shape in{6, 8};
  const Shape out{8, 6};
  const std::vector<Line> expected = {{"mlp.router.weight", {3, 8}, Cut::kWhole, false},
                                      {"mlp.router.bias", {3}, Cut::kWhole, false},
                                      {"mlp.experts.0.gate.weight", in, Cut::kRows, true},
                                      {"mlp.experts.0.up.weight", in, Cut::kRows, true},
                                      {"mlp.experts.1.gate.weight", in, Cut::kRows, true},
                                      {"mlp.experts.1.up.weight", in, Cut::kRows, true},
                                      {"mlp.experts.2.gate.weight", in, Cut::kRows, true},
                                      {"mlp.experts.2.up.weight", in, Cut::kRows, true},
                                      {"mlp.experts.0.down.weight", out, Cut::kColumns, true},
                                      {"mlp.experts.1.down.weight", out, Cut::kColumns, true},
                                      {"mlp.experts.2.down.weight", out, Cut::kColumns, true},
                                      {"mlp.experts.0.gate.bias", {6}, Cut::kRows, true},
                                      {"mlp.experts.0.up.bias", {6}, Cut::kRows, true},
                                      {"mlp.experts.1.gate.bias", {6}, Cut::kRows, true},
                                      {"mlp.experts.1.up.bias", {6}, Cut::kRows, true},
                                      {"mlp.experts.2.gate.bias", {6}, Cut::kRows, true},
                                      {"mlp.experts.2.up.bias", {6}, Cut::kRows, true},
                                      {"mlp.experts.0.down.bias", {8}, Cut::kWhole, true},
                                      {"mlp.experts.1.down.bias", {8}, Cut::kWhole, true},
                                      {"mlp.experts.2.down.bias", {8}, Cut::kWhole, true},
                                      {"mlp.shared.gate.weight", {5, 8}, Cut::kRows, false},
                                      {"mlp.shared.gate.bias", {5}, Cut::kRows, false},
                                      {"mlp.shared.up.weight", {5, 8}, Cut::kRows, false},
                                      {"mlp.shared.up.bias", {5}, Cut::kRows, false},
                                      {"mlp.shared.down.weight", {8, 5}, Cut::kColumns, false},
                                      {"mlp.shared.down.bias", {8}, Cut::kWhole, false}};
  const std::vector<TensorDecl> found = feed_forward_tensors(two_layers(), 1);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(found[i].name);
    CHECK(found[i].name == expected[i].name);
    CHECK(found[i].shape == expected[i].shape);
    CHECK(found[i].cut == expected[i].cut);
    CHECK(found[i].of_expert == expected[i].of_expert);
    CHECK(found[i].hidden_matrix == (found[i].shape.rank() == 2));
    // A rank sees of the router's gradient what comes through its columns of the experts.
    const bool is_router = found[i].name.starts_with("mlp.router.");
    CHECK((found[i].gradient_of_copy == GradientOfCopy::kOfMyShare) == is_router);
  }
}

TEST_CASE("a layer without experts among others is dense", "[spec][experts]") {
  const std::vector<TensorDecl> found = feed_forward_tensors(two_layers(), 0);
  REQUIRE(found.size() == 6);
  CHECK(found[0].name == "mlp.gate.weight");
  CHECK(found[0].shape == Shape{10, 8});
  CHECK_FALSE(found[0].of_expert);
}

TEST_CASE("the auxiliary loss counts only where the model adds it", "[spec][experts]") {
  ModelSpec model = two_layers();
  CHECK(Architecture(model).layers[1].feed_forward.experts->balance_coefficient == 0.0F);
  model.adds_balance_loss = true;
  CHECK(Architecture(model).layers[1].feed_forward.experts->balance_coefficient == 0.25F);
}

TEST_CASE("a token goes through the experts that it chooses", "[spec][experts]") {
  const ModelSpec model = two_layers();
  const std::int64_t outside = 11 * 8 + 8 + 11 * 8;
  const std::int64_t attention = 4 * 8 * 8;
  const std::int64_t dense = 3 * 8 * 10;
  const std::int64_t expert = 3 * 8 * 6;
  const std::int64_t shared = 3 * 8 * 5;
  const std::int64_t router = 3 * 8;
  const std::int64_t vectors = 4 * 8 + (2 * 10 + 8) + 3 + (2 * 5 + 8);  // norms and biases
  const std::int64_t expert_biases = 2 * 6 + 8;
  const std::int64_t all = outside + 2 * attention + dense + router + shared + vectors;
  CHECK(num_parameters(model) == all + 3 * (expert + expert_biases));
  CHECK(active_parameters(model) == all + 2 * (expert + expert_biases));
  // Embeddings, norms and biases are not counted; causal attention over 16 positions.
  const std::int64_t matrices = 2 * attention + dense + router + shared + 2 * expert + 11 * 8;
  CHECK(flops_per_token(model, 16) == 6.0 * static_cast<double>(matrices) + 2 * 12.0 * 8 * 8);
}

}  // namespace dstrain
