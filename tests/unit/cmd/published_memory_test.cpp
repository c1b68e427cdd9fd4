// The published tables, cell by cell. Where a paper prints rounded figures, the tolerance is half
// of its last digit.
#include "cmd/memory/published_memory.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/arch/model_counts.h"
#include "kernels/core/check.h"
#include "kernels/math/activation.h"

namespace dstrain {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kMiB = 1 << 20;

struct Sc21Row {
  std::int64_t heads, hidden, layers;
  double billions;  ///< "Number of parameters"
};

// Narayanan et al. 2021, Table 1.
const std::vector<Sc21Row> kSc21 = {
    {24, 2304, 24, 1.7},       {32, 3072, 30, 3.6},     {32, 4096, 36, 7.5},
    {48, 6144, 40, 18.4},      {64, 8192, 48, 39.1},    {80, 10240, 60, 76.1},
    {96, 12288, 80, 145.6},    {128, 16384, 96, 310.1}, {128, 20480, 105, 529.6},
    {160, 25600, 128, 1008.0},
};

PublishedGpt gpt_of(const Sc21Row& row) {
  return {.vocab_size = 51200,
          .sequence_length = 2048,
          .hidden_size = row.hidden,
          .num_layers = row.layers,
          .num_heads = row.heads};
}

ModelSpec gpt2_model(const PublishedGpt& gpt) {
  return {.model_type = "gpt2",
          .vocab_size = gpt.vocab_size,
          .hidden_size = gpt.hidden_size,
          .num_layers = gpt.num_layers,
          .num_heads = gpt.num_heads,
          .num_key_value_heads = gpt.num_heads,
          .head_dim = gpt.hidden_size / gpt.num_heads,
          .intermediate_size = 4 * gpt.hidden_size,
          .max_positions = gpt.sequence_length,
          .norm = NormKind::kLayerNorm,
          .position = PositionKind::kLearned,
          .activation = ActivationKind::kGeluTanh,
          .gated_mlp = false,
          .qkv_bias = true,
          .attention_output_bias = true,
          .mlp_bias = true,
          .tied_embeddings = true};
}

struct KorthikantiRow {
  std::string name;
  PublishedGpt gpt;
  PublishedRun run;
  double states_gib, none_gib, sequence_selective_gib;                     ///< Figure 1
  double sequence_percent, selective_percent, both_percent, full_percent;  ///< Figure 7
};

// Korthikanti et al. 2022, models of Table 3.
std::vector<KorthikantiRow> korthikanti() {
  const auto gpt = [](std::int64_t hidden, std::int64_t layers, std::int64_t heads) {
    return PublishedGpt{.vocab_size = 51200,
                        .sequence_length = 2048,
                        .hidden_size = hidden,
                        .num_layers = layers,
                        .num_heads = heads};
  };
  return {
      {"22B",
       gpt(6144, 48, 64),
       {.micro_batch_size = 4, .tensor = 8},
       45.5625,
       59.25,
       9.5625,
       66.84,
       49.42,
       16.18,
       7.64},
      {"175B",
       gpt(12288, 96, 96),
       {.tensor = 8, .pipeline = 8, .interleave = 3},
       45.5625,
       66.84375,
       12.3515625,
       62.04,
       56.53,
       18.49,
       8.71},
      {"530B",
       gpt(20480, 105, 128),
       {.tensor = 8, .pipeline = 35, .interleave = 3},
       31.640625,
       114.0234375,
       23.076171875,
       58.31,
       62.04,
       20.27,
       9.42},
      {"1T",
       gpt(25600, 128, 160),
       {.tensor = 8, .pipeline = 64},
       32.958984375,
       131.25,
       26.5625,
       58.31,
       62.04,
       20.27,
       9.42},
  };
}

/// Rajbhandari et al. print whole numbers cut and decimals rounded, ties up.
bool prints_as(double figure, const std::string& printed) {
  const double number = std::stod(printed);
  const auto point = printed.find('.');
  if (point == std::string::npos) return std::floor(figure) == number;
  const double step = std::pow(10.0, -static_cast<double>(printed.size() - point - 1));
  return figure >= number - step / 2 - 1e-9 && figure < number + step / 2;
}

}  // namespace

TEST_CASE("the closed form gives every model size of SC'21, Table 1", "[memory][published]") {
  REQUIRE(kSc21.size() == 10);
  for (const Sc21Row& row : kSc21) {
    INFO(row.billions << " billion");
    const double billions = static_cast<double>(gpt_parameters(gpt_of(row))) / 1e9;
    CHECK(std::abs(billions - row.billions) <= 0.05);
  }
}

TEST_CASE("a GPT-2 has the closed form's parameters and the last LayerNorm's",
          "[memory][published]") {
  for (const Sc21Row& row : kSc21) {
    const PublishedGpt gpt = gpt_of(row);
    const ModelSpec model = gpt2_model(gpt);
    // Weight and bias of the LayerNorm before the head: the closed form leaves out only these.
    CHECK(num_parameters(model) - gpt_parameters(gpt) == 2 * gpt.hidden_size);
    const PublishedGpt again = published_gpt(model, gpt.sequence_length);
    CHECK(gpt_parameters(again) == gpt_parameters(gpt));
    CHECK(again.num_heads == gpt.num_heads);
  }
}

TEST_CASE("states and activations are those of Korthikanti et al. to the last digit",
          "[memory][published]") {
  for (const KorthikantiRow& row : korthikanti()) {
    INFO(row.name);
    const auto gib = [&](ActivationScheme scheme) {
      return first_stage_activation_bytes(row.gpt, row.run, scheme) / kGiB;
    };
    CHECK(block_state_bytes(row.gpt, row.run) / kGiB == row.states_gib);
    // 5·a·s/h/t has thirds: the sum is exact to a double's rounding.
    CHECK(gib(ActivationScheme::kTensor) == Approx(row.none_gib).epsilon(1e-13));
    CHECK(gib(ActivationScheme::kTensorSequenceSelective) ==
          Approx(row.sequence_selective_gib).epsilon(1e-13));
    const auto percent = [&](ActivationScheme scheme) {
      return 100 * gib(scheme) / gib(ActivationScheme::kTensor);
    };
    // Read off the figure's bars: two of them are 0.10 and 0.14 of a point from the formula.
    CHECK(percent(ActivationScheme::kTensor) == 100.0);
    CHECK(percent(ActivationScheme::kTensorSequence) == Approx(row.sequence_percent).margin(0.15));
    CHECK(percent(ActivationScheme::kTensorSelective) ==
          Approx(row.selective_percent).margin(0.15));
    CHECK(percent(ActivationScheme::kTensorSequenceSelective) ==
          Approx(row.both_percent).margin(0.15));
    CHECK(percent(ActivationScheme::kFull) == Approx(row.full_percent).margin(0.15));
  }
}

TEST_CASE("no parallelism is tensor parallelism over one rank, whatever the run's degree",
          "[memory][published]") {
  const PublishedGpt gpt = korthikanti()[0].gpt;
  const double alone =
      activation_bytes_per_layer(gpt, {.micro_batch_size = 4}, ActivationScheme::kTensor);
  CHECK(alone == Approx(2048.0 * 4 * (6144 * 34 + 5 * 64 * 2048)).epsilon(1e-14));
  for (const std::int64_t tensor : {1, 8}) {
    const PublishedRun run = {.micro_batch_size = 4, .tensor = tensor};
    CHECK(activation_bytes_per_layer(gpt, run, ActivationScheme::kNone) == alone);
  }
}

TEST_CASE("a pipeline's first stage holds a whole model's layers, more of them interleaved",
          "[memory][published]") {
  CHECK(first_stage_share({.pipeline = 1}) == 1.0);
  CHECK(first_stage_share({.pipeline = 8}) == 1.0);
  // By hand: 4 ranks, 2 chunks: 8 virtual stages; the first rank has p·m + p − 1 = 11 of them full.
  CHECK(first_stage_share({.pipeline = 4, .interleave = 2}) == 11.0 / 8.0);
  CHECK(first_stage_share({.pipeline = 8, .micro_batches = 2}) == 0.25);
  CHECK(first_stage_share({.pipeline = 8, .micro_batches = 9}) == 1.0);
}

TEST_CASE("outside the layers the 22B model keeps 230 MiB, a pipeline only dropout masks",
          "[memory][published]") {
  const PublishedGpt gpt = korthikanti()[0].gpt;
  // 2048·4·6144/8 = 6 MiB; 1 + 4·(1 + 51200/6144) = 38 1/3 of them.
  const PublishedRun run = {.micro_batch_size = 4, .tensor = 8};
  CHECK(outer_activation_bytes(gpt, run) / kMiB == Approx(230.0).epsilon(1e-14));
  const PublishedRun piped = {.micro_batch_size = 4, .tensor = 8, .pipeline = 4};
  CHECK(outer_activation_bytes(gpt, piped) / kMiB == 24.0);
}

TEST_CASE("ZeRO's model states are the paper's grid, cell by cell", "[memory][published]") {
  struct Row {
    double parameters;
    std::int64_t ranks;
    std::vector<std::string> gb;  ///< stages 1, 2, 3
  };
  const std::vector<Row> grid = {
      {7.5e9, 1, {"120", "120", "120"}},      {7.5e9, 4, {"52.5", "41.3", "30"}},
      {7.5e9, 16, {"35.6", "21.6", "7.5"}},   {7.5e9, 64, {"31.4", "16.6", "1.88"}},
      {7.5e9, 256, {"30.4", "15.4", "0.47"}}, {7.5e9, 1024, {"30.1", "15.1", "0.12"}},
      {128e9, 1, {"2048", "2048", "2048"}},   {128e9, 4, {"896", "704", "512"}},
      {128e9, 16, {"608", "368", "128"}},     {128e9, 64, {"536", "284", "32"}},
      {128e9, 256, {"518", "263", "8"}},      {128e9, 1024, {"513", "257", "2"}},
      {1e12, 1, {"16000", "16000", "16000"}}, {1e12, 4, {"7000", "5500", "4000"}},
      {1e12, 16, {"4750", "2875", "1000"}},   {1e12, 64, {"4187", "2218", "250"}},
      {1e12, 256, {"4046", "2054", "62.5"}},  {1e12, 1024, {"4011", "2013", "15.6"}},
  };
  REQUIRE(grid.size() == 18);
  for (const Row& row : grid) {
    for (std::size_t i = 0; i < row.gb.size(); ++i) {
      const int stage = static_cast<int>(i) + 1;
      const double gb = zero_model_state_bytes(row.parameters, stage, row.ranks) / 1e9;
      INFO(row.parameters << " parameters, " << row.ranks << " ranks, stage " << stage << ": "
                          << gb);
      CHECK(prints_as(gb, row.gb[i]));
    }
    CHECK(zero_model_state_bytes(row.parameters, 0, row.ranks) == 16 * row.parameters);
  }
  CHECK_THROWS_AS(zero_model_state_bytes(1e9, 4, 1), InternalError);
  CHECK_THROWS_AS(zero_model_state_bytes(1e9, 1, 0), InternalError);
}

TEST_CASE("sixteen bytes a parameter fill 24 GB with 1.5 billion and 80 GB with 5 billion",
          "[memory][published]") {
  CHECK(zero_model_state_bytes(1.5e9, 0, 1) == 24e9);
  CHECK(zero_model_state_bytes(5e9, 0, 1) == 80e9);
  // DeepSpeed's tutorial: Adam's 18 GB of a GPT-2 of 1.5 billion are 2.25 GB on each of 8 ranks.
  CHECK(zero_model_state_bytes(1.5e9, 1, 8) - 4 * 1.5e9 == 2.25e9);
}

TEST_CASE("Megatron's distributed optimizer has its guide's bytes a parameter",
          "[memory][published]") {
  CHECK(megatron_bytes_per_parameter(MegatronPrecision::kF16, 1) == 20);
  CHECK(megatron_bytes_per_parameter(MegatronPrecision::kBF16WithF32Gradients, 1) == 18);
  CHECK(megatron_bytes_per_parameter(MegatronPrecision::kF32, 1) == 16);
  CHECK(megatron_bytes_per_parameter(MegatronPrecision::kF16, 8) == 4 + 16.0 / 8);
  CHECK(megatron_bytes_per_parameter(MegatronPrecision::kBF16WithF32Gradients, 8) == 6 + 12.0 / 8);
  CHECK(megatron_bytes_per_parameter(MegatronPrecision::kF32, 8) == 8 + 8.0 / 8);
}

TEST_CASE("LLaMA-13B holds 26 GB of weights, 156 GB of Adam and 14.5 GiB of activations",
          "[memory][published]") {
  const ModelSpec llama = {.vocab_size = 32000,
                           .hidden_size = 5120,
                           .num_layers = 40,
                           .num_heads = 40,
                           .num_key_value_heads = 40,
                           .head_dim = 128,
                           .intermediate_size = 13824,
                           .max_positions = 2048};
  REQUIRE(num_parameters(llama) == 13'015'864'320);
  const auto parameters = static_cast<double>(num_parameters(llama));
  // GB of 10^9: 2 bytes of each 16-bit weight; 12 of Adam's f32 copy and two averages, which are
  // the 16 of mixed precision without weight and gradient.
  CHECK(2 * parameters / 1e9 == Approx(26).margin(0.5));
  const double adam = zero_model_state_bytes(parameters, 0, 1) - 4 * parameters;
  CHECK(adam / 1e9 == Approx(156).margin(0.5));
  // The activations are published in GiB: a GPT's 40 layers on one rank, one sequence of 1024.
  const double activations =
      first_stage_activation_bytes(published_gpt(llama, 1024), {}, ActivationScheme::kNone);
  CHECK(activations / kGiB == Approx(14.5).margin(0.05));
  CHECK(activations == 40.0 * 1024 * 5120 * (34 + 5 * 40 * 1024 / 5120));
}

TEST_CASE("the text gives the figures with their units", "[memory][published]") {
  const KorthikantiRow row = korthikanti()[1];
  PublishedRun run = row.run;
  run.data = 16;
  const std::string text = published_text(gpt2_model(row.gpt), 2048, run);
  CAPTURE(text);
  for (const char* figure :
       {"96 layers × 12288, 96 heads, 51200 tokens", "8 pipeline × 16 data × 8 tensor, 3 chunks",
        "174.616 B", "45.56 GiB", "66.84 GiB", "12.35 GiB", "61.96 % of tensor", "stage 3"}) {
    CHECK(text.find(figure) != std::string::npos);
  }
  // 174'615'846'912 parameters by hand; 16 bytes of each over 8·8 ranks of the model and 16 of the
  // data.
  CHECK(text.find("2.73 GB") != std::string::npos);
}

}  // namespace dstrain
