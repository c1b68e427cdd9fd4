// Parts of the learning rate: a tensor's is its part of the run's, whatever the optimizer, and
// every layout follows one rank.
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/partly_trained.h"

namespace dstrain::test {
namespace {

std::vector<OptimizerConfig> optimizers() {
  using enum OptimizerKind;
  std::vector<OptimizerConfig> all;
  for (const OptimizerKind kind : {kAdamW, kAdam, kSgd, kAdagrad, kRmsprop, kLion, kLamb, kMuon,
                                   kOneBitAdam, kZeroOneAdam, kOneBitLamb}) {
    all.push_back({.kind = kind,
                   // Signs move what is hardly used as far as the rest: a frozen variance of almost
                   // 0 must not blow that up.
                   .epsilon = sends_signs(kind) ? 1e-3 : 1e-8,
                   .weight_decay = 0.1,
                   .momentum = kind == kMuon || kind == kSgd ? 0.9 : 0.0,
                   .freeze_step = 3,
                   .var_update_scaler = 1,
                   .local_step_scaler = 1,
                   .local_step_clipper = 3});
  }
  return all;
}

std::vector<TinyRun> train_two(const TinyOptions& options) {
  return thread_world(2, [&](Rendezvous& rendezvous) { return train_tiny(rendezvous, options); });
}

}  // namespace

TEST_CASE("twice a rate has the bits of the same rate on twice the scale",
          "[parity][optim][rates]") {
  for (const OptimizerConfig& optimizer : optimizers()) {
    CAPTURE(static_cast<int>(optimizer.kind));
    TinyOptions options{
        .micro_batch = 2, .learning_rate = 1e-3, .optimizer = optimizer, .steps = 8};
    const std::vector<TinyRun> once = train_two(options);
    options.rates.scales = {{"*", 2.0}};
    const std::vector<TinyRun> scaled = train_two(options);
    options.rates.scales.clear();
    options.learning_rate *= 2.0;
    const std::vector<TinyRun> twice = train_two(options);
    CHECK(scaled[0].parameters == twice[0].parameters);
    CHECK(scaled[1].parameters == twice[1].parameters);
    CHECK(scaled[0].losses == twice[0].losses);
    CHECK(scaled[0].losses.back() < scaled[0].losses.front());
    CHECK(scaled[0].parameters != once[0].parameters);
  }
}

TEST_CASE("only the tensors that a pattern covers move otherwise", "[parity][optim][rates]") {
  const auto masters_of = [](const TinyOptions& options) {
    std::map<std::string, std::vector<float>> masters;
    for (const HeldPiece& held : train_tiny(options).held) {
      if (held.state == "parameter") masters[held.piece.tensor] = held.values;
    }
    return masters;
  };
  TinyOptions options{.steps = 1};
  const auto plain = masters_of(options);
  options.rates = {.scales = {{"*.query.weight", 2.0}}};
  const auto scaled = masters_of(options);
  options.rates = {.layer_decay = 0.5};
  const auto decayed = masters_of(options);
  options.rates = {};
  options.learning_rate *= 2.0;
  const auto twice = masters_of(options);
  options.learning_rate /= 8.0;
  const auto quarter = masters_of(options);
  for (const auto& [tensor, values] : plain) {
    INFO(tensor);
    CHECK(scaled.at(tensor) == (tensor.ends_with(".query.weight") ? twice : plain).at(tensor));
    if (tensor.starts_with("blocks.0.")) CHECK(decayed.at(tensor) == quarter.at(tensor));
    if (tensor.starts_with("head.")) CHECK(decayed.at(tensor) == values);
  }
}

TEST_CASE("every layout follows one rank where tensors have rates of their own",
          "[parity][rates][layouts]") {
  check_layouts(
      {.rates = {.scales = {{"*.value.weight", 4.0}, {"embedding.*", 0.25}}, .layer_decay = 0.75}});
  check_layouts({.rates = {.scales = {{"*.lora_b", 16.0}}},
                 .adapters = {.rank = 4, .target_modules = {"all-linear"}}});
}

TEST_CASE("states on the host have the rates of the device's", "[parity][offload][rates]") {
  TinyOptions options{.zero_stage = 2,
                      .steps = 4,
                      .rates = {.scales = {{"*.value.weight", 4.0}}, .layer_decay = 0.75}};
  const std::vector<TinyRun> device = train_two(options);
  options.states = Space::kHost;
  const std::vector<TinyRun> host = train_two(options);
  CHECK(host[0].parameters == device[0].parameters);
  CHECK(host[0].losses == device[0].losses);
}

}  // namespace dstrain::test
