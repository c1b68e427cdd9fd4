// Runs that DeepSpeed began and saved go on here as DeepSpeed itself goes on with them
// (tests/golden/deepspeed-continuations, scripts/make_deepspeed_continuations.py).
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/conversion.h"
#include "engine/checkpoint/foreign/huggingface/names.h"
#include "engine/checkpoint/model_tensors.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/data/sampler.h"
#include "engine/optim/grad_norm.h"
#include "engine/optim/loss_scaler.h"
#include "engine/optim/lr_schedule.h"
#include "engine/optim/optimizer_kinds.h"
#include "kernels/backend.h"
#include "kernels/optimizers.h"
#include "tests/harness/resumable_run.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = DSTRAIN_UNPACKED "/deepspeed-continuations";
constexpr std::int64_t kSavedAt = 4;
constexpr std::int64_t kMoreSteps = 6;
constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kSequence = 8;
constexpr std::uint64_t kSeed = 5;

template <typename T>
std::vector<T> values_of(const SafetensorsFile& file, const std::string& name) {
  const auto data = file.data(file.tensors().at(name));
  std::vector<T> values(data.size() / sizeof(T));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

/// A tensor of ours, from one under Hugging Face's name with `prefix` before it.
std::map<std::string, std::vector<float>> tensors_of(const SafetensorsFile& file,
                                                     const ModelSpec& model,
                                                     const std::string& prefix) {
  std::map<std::string, std::vector<float>> all;
  for (const ForeignTensor& tensor : huggingface_tensors(model)) {
    const auto data = file.data(file.tensors().at(prefix + tensor.name));
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
      const ModelTensor& part = tensor.parts[i];
      std::vector<float>& values = all[part.name];
      values.resize(static_cast<std::size_t>(part.shape.numel()));
      read_placed(place_of_part(tensor, i, data.data(), DType::kF32),
                  piece_of(part, {0, part.shape.numel()}),
                  {values.data(), DType::kF32, Shape{part.shape.numel()}});
    }
  }
  return all;
}

/// The config that the golden runs had, and what a run beside it needs here.
LoadedConfig config_like(const RunFolder& folder, int stage, const std::string& dtype) {
  nlohmann::json text{
      {"train_batch_size", kBatch},
      {"gradient_clipping", 1.0},
      {"optimizer",
       {{"type", "AdamW"},
        {"params",
         {{"lr", 1e-2},
          {"betas", {0.9, 0.95}},
          {"eps", 1e-8},
          {"weight_decay", 0.1},
          {"decay", "all"}}}}},
      {"scheduler",
       {{"type", "WarmupLR"},
        {"params", {{"warmup_num_steps", 7}, {"warmup_type", "linear"}, {"warmup_max_lr", 1e-2}}}}},
      {"zero_optimization", {{"stage", stage}}},
      {"model",
       {{"model_type", "gpt2"},
        {"vocab_size", 11},
        {"n_positions", kSequence},
        {"n_embd", 4},
        {"n_layer", 1},
        {"n_head", 2}}},
      {"data",
       {{"train", (folder.path() / "stream.bin").string()}, {"sequence_length", kSequence}}},
      {"training",
       {{"steps", kSavedAt + kMoreSteps},
        {"seed", kSeed},
        {"device", "cpu"},
        {"output_dir", (folder.path() / "run").string()}}},
      {"checkpoint", {{"resume", (folder.path() / "converted").string()}}}};
  if (dtype != "fp32") {
    text[dtype] = {{"enabled", true}};
  }
  if (dtype == "fp16") {
    text["fp16"].update({{"initial_scale_power", 6}, {"loss_scale_window", 2}, {"hysteresis", 2}});
  }
  const fs::path file = folder.path() / "run.json";
  std::ofstream(file) << text.dump(2);
  return load_config(file.string(), {});
}

void write_stream(const fs::path& path) {
  const SafetensorsFile file(kGolden / "stream.safetensors");
  const std::vector<std::int64_t> tokens = values_of<std::int64_t>(file, "tokens");
  std::ofstream out(path, std::ios::binary);
  for (const std::int64_t token : tokens) {
    const auto id = static_cast<std::uint16_t>(token);
    out.write(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  // The order in which DeepSpeed was given the samples.
  const auto sequences = (static_cast<std::int64_t>(tokens.size()) - 1) / kSequence;
  const Sampler sampler({sequences}, {1.0}, kSeed);
  const std::vector<std::int64_t> order = values_of<std::int64_t>(file, "order");
  for (std::size_t i = 0; i < order.size(); ++i) {
    REQUIRE(sampler.draw(static_cast<std::int64_t>(i)).index == order[i]);
  }
}

/// Masters, moments and gradients as flat rows of one length, the parameters in one order.
struct FlatState {
  std::vector<float> values;
  void add(const std::vector<float>& more) {
    values.insert(values.end(), more.begin(), more.end());
  }
  [[nodiscard]] Tensor tensor() {
    return {values.data(), DType::kF32, Shape{static_cast<std::int64_t>(values.size())}};
  }
};

FlatState flat(const std::map<std::string, std::vector<float>>& tensors) {
  FlatState state;
  for (const auto& [name, values] : tensors) {
    state.add(values);
  }
  return state;
}

FlatState flat_of_source(const WeightsSource& source, const std::string& kind) {
  std::map<std::string, std::vector<float>> tensors;
  for (const ModelTensor& tensor : model_tensors(source.model)) {
    const std::int64_t numel = tensor.shape.numel();
    std::vector<float>& values = tensors[tensor.name];
    values.resize(static_cast<std::size_t>(numel));
    source.tensors->read(kind, piece_of(tensor, {0, numel}),
                         {values.data(), DType::kF32, Shape{numel}});
  }
  return flat(tensors);
}

void check_near(const FlatState& found, const FlatState& expected) {
  REQUIRE(found.values.size() == expected.values.size());
  double differences = 0.0;
  double squares = 0.0;
  for (std::size_t i = 0; i < found.values.size(); ++i) {
    const double difference = static_cast<double>(found.values[i]) - expected.values[i];
    differences += difference * difference;
    squares += static_cast<double>(expected.values[i]) * expected.values[i];
  }
  CHECK(std::sqrt(differences) <= 1e-5 * std::sqrt(squares));
}

}  // namespace

TEST_CASE("a run of DeepSpeed's continues with DeepSpeed's losses in every ZeRO stage",
          "[parity][deepspeed]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const int ranks = GENERATE(1, 2);
  CAPTURE(stage, ranks);
  const RunFolder folder;
  write_stream(folder.path() / "stream.bin");
  const fs::path golden = kGolden / ("zero" + std::to_string(stage) + "-fp32");
  REQUIRE(convert_checkpoint({.from = golden, .to = folder.path() / "converted"}, {}));
  LoadedConfig config = config_like(folder, stage, "fp32");
  resolve_config(config, ranks);
  run(config, ranks);
  const std::vector<double> losses =
      values_of<double>(SafetensorsFile(golden / "expected.safetensors"), "loss");
  const std::vector<double> rates =
      values_of<double>(SafetensorsFile(golden / "expected.safetensors"), "rate");
  std::ifstream metrics(folder.path() / "run" / "metrics.jsonl");
  std::size_t step = 0;
  for (std::string line; std::getline(metrics, line); ++step) {
    const nlohmann::json json = nlohmann::json::parse(line);
    REQUIRE(step < losses.size());
    CHECK(json.at("step") == kSavedAt + static_cast<std::int64_t>(step) + 1);
    CHECK(json.at("loss").get<double>() == Approx(losses[step]).epsilon(1e-5));
    CHECK(json.at("lr").get<double>() == Approx(rates[step]).epsilon(1e-12));
  }
  CHECK(step == losses.size());
}

// 16-bit products round where a program happens to round, so that losses differ by more; what the
// optimizer, the schedule and the loss scale make of DeepSpeed's own gradients does not.
TEST_CASE("a 16-bit run of DeepSpeed's continues with its state, schedule and loss scale",
          "[parity][deepspeed]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string dtype = GENERATE("bf16", "fp16");
  CAPTURE(stage, dtype);
  const RunFolder folder;
  write_stream(folder.path() / "stream.bin");
  const fs::path golden = kGolden / ("zero" + std::to_string(stage) + "-" + dtype);
  REQUIRE(convert_checkpoint({.from = golden, .to = folder.path() / "converted"}, {}));
  LoadedConfig loaded = config_like(folder, stage, dtype);
  resolve_config(loaded, 1);
  const Config& config = loaded.config;
  const WeightsSource source = open_weights(folder.path() / "converted");
  TrainingState state = source.training;
  CHECK(state.step == kSavedAt);
  CHECK(state.consumed_samples == kSavedAt * kBatch);
  CHECK(state.skipped_steps == (dtype == "fp16" ? 1 : 0));
  LossScaler scaler(dtype == "fp16" ? config.loss_scale : LossScaleConfig{.static_scale = 1.0},
                    stage > 0);
  scaler.restore({.scale = state.loss_scale,
                  .iteration = state.scaler_iteration,
                  .last_overflow = state.last_overflow,
                  .hysteresis = state.hysteresis});

  FlatState master = flat_of_source(source, "parameter");
  FlatState first = flat_of_source(source, "exp_avg");
  FlatState second = flat_of_source(source, "exp_avg_sq");
  const SafetensorsFile expected(golden / "expected.safetensors");
  const std::vector<double> scales = values_of<double>(expected, "scale");
  const std::vector<double> rates = values_of<double>(expected, "rate");
  const Backend backend = make_cpu_backend(1);
  for (std::int64_t more = 0; more < kMoreSteps; ++more) {
    CAPTURE(more);
    const auto at = static_cast<std::size_t>(more);
    FlatState gradient = flat(tensors_of(expected, source.model,
                                         "gradient/" + std::to_string(kSavedAt + more + 1) + "/"));
    CHECK(scaler.scale() == scales[at]);
    const OptimizerConfig& optimizer = config.optimizer;
    const double rate = learning_rate_of_update(config.scheduler, optimizer.learning_rate,
                                                state.scheduler_step + 1);
    CHECK(rate == Approx(rates[at]).epsilon(1e-12));
    double squares = 0.0;
    for (const float g : gradient.values) {
      squares += static_cast<double>(g) * g;
    }
    const double norm = std::sqrt(squares) / scaler.scale();
    const bool overflow = !std::isfinite(norm);
    CHECK(scaler.after_step(overflow) == ScaleOutcome::kOk);
    if (!overflow) {
      // DeepSpeed moves the scale first, so that the gradients of a step that doubles it are
      // divided by the double: the one thing in which Trainer does not follow it (loss_scaler.h).
      const double divisor = scaler.scale();
      state.scheduler_step += 1;
      state.optimizer_step += 1;
      const double scale =
          clip_factor(std::sqrt(squares) / divisor, config.gradient_clipping) / divisor;
      AdamwStep step = adamw_step(
          optimizer, {.update = state.optimizer_step, .gradient_scale = static_cast<float>(scale)},
          rate);
      step.weight_decay = optimizer.weight_decay;
      Stream& stream = backend.device->compute_stream();
      backend.ops->update(step,
                          {.gradient = gradient.tensor(),
                           .master = master.tensor(),
                           .first_moment = first.tensor(),
                           .second_moment = second.tensor()},
                          stream);
      stream.synchronize();
    }
  }
  check_near(master, flat(tensors_of(expected, source.model, "final/")));
  check_near(first, flat(tensors_of(expected, source.model, "final_exp_avg/")));
  check_near(second, flat(tensors_of(expected, source.model, "final_exp_avg_sq/")));
}

}  // namespace dstrain::test
