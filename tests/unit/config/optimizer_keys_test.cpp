// Every optimizer has the parameters and defaults that DeepSpeed and torch give it, and no others'.
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::vector<std::string> with(const std::string& type, const std::string& params = "{}") {
  return {R"(optimizer={"type": ")" + type + R"(", "params": )" + params + "}"};
}

LoadedConfig resolved(const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, 2);
  return loaded;
}

OptimizerConfig optimizer_of(const std::string& type, const std::string& params = "{}") {
  return resolved(with(type, params)).config.optimizer;
}

std::string error_of(const std::string& type, const std::string& params = "{}") {
  return config_error_of([&] { resolved(with(type, params)); });
}

}  // namespace

TEST_CASE("each optimizer begins with its own defaults", "[spec][optimizer]") {
  const OptimizerConfig adamw{.kind = OptimizerKind::kAdamW,
                              .learning_rate = 1e-3,
                              .beta1 = 0.9,
                              .beta2 = 0.999,
                              .epsilon = 1e-8,
                              .weight_decay = 0.0,
                              .bias_correction = true};
  CHECK(optimizer_of("AdamW") == adamw);
  CHECK(optimizer_of("Adam") == adamw);
  const OptimizerConfig sgd = optimizer_of("SGD");
  CHECK(sgd.kind == OptimizerKind::kSgd);
  CHECK(sgd.learning_rate == 1e-3);
  CHECK(sgd.momentum == 0.0);
  CHECK_FALSE(sgd.nesterov);
  const OptimizerConfig adagrad = optimizer_of("Adagrad");
  CHECK(adagrad.kind == OptimizerKind::kAdagrad);
  CHECK(adagrad.learning_rate == 1e-2);
  CHECK(adagrad.epsilon == 1e-10);
  const OptimizerConfig rmsprop = optimizer_of("rmsprop");
  CHECK(rmsprop.kind == OptimizerKind::kRmsprop);
  CHECK(rmsprop.learning_rate == 1e-2);
  CHECK(rmsprop.alpha == 0.99);
  CHECK(rmsprop.epsilon == 1e-8);
  CHECK_FALSE(rmsprop.centered);
  const OptimizerConfig lion = optimizer_of("Lion");
  CHECK(lion.kind == OptimizerKind::kLion);
  CHECK(lion.beta2 == 0.999);
  const OptimizerConfig lamb = optimizer_of("Lamb");
  CHECK(lamb.kind == OptimizerKind::kLamb);
  CHECK(lamb.max_coeff == 10.0);
  CHECK(lamb.min_coeff == 0.01);
  CHECK_FALSE(lamb.eps_inside_sqrt);
  const OptimizerConfig muon = optimizer_of("Muon");
  CHECK(muon == OptimizerConfig{.kind = OptimizerKind::kMuon,
                                .learning_rate = 0.02,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .epsilon = 1e-10,
                                .momentum = 0.95,
                                .nesterov = true,
                                .muon_lr = 0.02,
                                .adam_lr = 3e-4});
}

TEST_CASE("types are known in any letter case", "[spec][optimizer]") {
  CHECK(optimizer_of("adamw").kind == OptimizerKind::kAdamW);
  CHECK(optimizer_of("ADAM").kind == OptimizerKind::kAdamW);
  CHECK(optimizer_of("sgd").kind == OptimizerKind::kSgd);
  CHECK(optimizer_of("muon").kind == OptimizerKind::kMuon);
  CHECK(value_of_path(resolved(with("lamb")), "optimizer.type") == "\"Lamb\"");
}

TEST_CASE("a parameter arrives in its field", "[spec][optimizer]") {
  const OptimizerConfig sgd = optimizer_of(
      "SGD", R"({"lr": 0.5, "momentum": 0.8, "dampening": 0.25, "weight_decay": 0.125})");
  CHECK(sgd.learning_rate == 0.5);
  CHECK(sgd.momentum == 0.8);
  CHECK(sgd.dampening == 0.25);
  CHECK(sgd.weight_decay == 0.125);
  CHECK(optimizer_of("SGD", R"({"momentum": 0.8, "nesterov": true})").nesterov);
  const OptimizerConfig lamb = optimizer_of(
      "Lamb", R"({"max_coeff": 3, "min_coeff": 0.5, "eps_inside_sqrt": true, "eps": 1e-6})");
  CHECK(lamb.max_coeff == 3.0);
  CHECK(lamb.min_coeff == 0.5);
  CHECK(lamb.eps_inside_sqrt);
  CHECK(lamb.epsilon == 1e-6);
  const OptimizerConfig muon =
      optimizer_of("Muon", R"({"lr": 0.1, "adam_lr": 0.2, "momentum": 0.5, "nesterov": false,
                               "ns_method": "standard"})");
  CHECK(muon.muon_lr == 0.1);
  CHECK(muon.adam_lr == 0.2);
  CHECK(muon.momentum == 0.5);
  CHECK_FALSE(muon.nesterov);
  CHECK(optimizer_of("Muon", R"({"lr": 0.1})").adam_lr == 0.1);
}

TEST_CASE("Adam is AdamW unless adam_w_mode is false; AdamW always is", "[spec][optimizer]") {
  CHECK(optimizer_of("Adam", R"({"adam_w_mode": false})").kind == OptimizerKind::kAdam);
  CHECK(optimizer_of("Adam", R"({"adam_w_mode": true})").kind == OptimizerKind::kAdamW);
  const LoadedConfig deaf = load_tiny(with("AdamW", R"({"adam_w_mode": false})"));
  CHECK(deaf.config.optimizer.kind == OptimizerKind::kAdamW);
  REQUIRE(deaf.notices.size() == 1);
  CHECK_THAT(deaf.notices[0], Contains("no effect: optimizer.params.adam_w_mode: type AdamW "
                                       "decouples the decay whatever it says"));
}

TEST_CASE("torch_adam changes nothing but the decay's default", "[spec][optimizer]") {
  CHECK(optimizer_of("AdamW", R"({"torch_adam": true})").weight_decay == 0.01);
  CHECK(optimizer_of("Adam", R"({"torch_adam": true})").weight_decay == 0.01);
  CHECK(optimizer_of("Adam", R"({"torch_adam": true, "adam_w_mode": false})").weight_decay == 0.0);
  CHECK(optimizer_of("AdamW", R"({"torch_adam": true, "weight_decay": 0.5})").weight_decay == 0.5);
  const LoadedConfig loaded = load_tiny(with("AdamW", R"({"torch_adam": true})"));
  CHECK(origin_of(loaded, "optimizer.params.weight_decay") ==
        "derived: torch.optim.AdamW's default (torch_adam)");
  CHECK_THAT(loaded.notices.at(0), Contains("only weight_decay's default becomes torch's"));
  CHECK(load_tiny(with("AdamW", R"({"torch_adam": false})")).notices.empty());
}

TEST_CASE("a parameter of another optimizer is an error that says whose it is",
          "[spec][optimizer]") {
  CHECK_THAT(error_of("SGD", R"({"betas": [0.9, 0.95]})"),
             Contains("optimizer.params.betas: has no meaning for optimizer.type \"SGD\": it "
                      "belongs to Adam, AdamW, Lion, Lamb, Muon and the 1-bit optimizers"));
  CHECK_THAT(error_of("AdamW", R"({"momentum": 0.9})"),
             Contains("it belongs to SGD, RMSprop and Muon"));
  CHECK_THAT(error_of("Lion", R"({"eps": 1e-8})"),
             Contains("it belongs to Adam, AdamW, Adagrad, RMSprop, Lamb, Muon and the 1-bit"));
  CHECK_THAT(error_of("Muon", R"({"bias_correction": true})"),
             Contains("it belongs to Adam, AdamW, Lamb and the 1-bit optimizers"));
  CHECK_THAT(error_of("Muon", R"({"dampening": 0})"), Contains("it belongs to SGD"));
  CHECK_THAT(error_of("Adam", R"({"max_coeff": 10})"),
             Contains("it belongs to Lamb and OneBitLamb"));
  CHECK_THAT(error_of("AdamW", R"({"freeze_step": 5})"),
             Contains("it belongs to OneBitAdam and OneBitLamb"));
  CHECK_THAT(error_of("OneBitAdam", R"({"var_freeze_step": 5})"),
             Contains("it belongs to ZeroOneAdam"));
  CHECK_THAT(error_of("ZeroOneAdam", R"({"factor_max": 5})"), Contains("it belongs to OneBitLamb"));
  CHECK_THAT(error_of("AdamW", R"({"muon_lr": 0.1})"), Contains("it belongs to Muon"));
  CHECK_THAT(error_of("Lion", R"({"adam_w_mode": true})"),
             Contains("it belongs to Adam and AdamW"));
  CHECK_THAT(error_of("Lion", R"({"lr_decay": 0})"), Contains("it belongs to Adagrad"));
}

TEST_CASE("an optimizer that is not here is refused with those that are", "[spec][optimizer]") {
  const std::string working =
      "; write \"AdamW\", \"Adam\", \"SGD\", \"Adagrad\", \"RMSprop\", \"Lion\", \"Lamb\", "
      "\"Muon\", \"OneBitAdam\", \"ZeroOneAdam\" or \"OneBitLamb\"";
  for (const char* type : {"MuAdam", "muadamw", "MuSGD"}) {
    CHECK_THAT(error_of(type), Contains("is refused: the optimizers of the mup package need"));
  }
  CHECK_THAT(error_of("Adagrd"), Contains("optimizer.type: \"Adagrd\" is refused: there is no such "
                                          "optimizer, did you mean \"Adagrad\"?" +
                                          working));
  CHECK_THAT(error_of("Shampoo"), Contains("there is no such optimizer" + working));
}

TEST_CASE("what no optimizer here does is refused with the reason", "[spec][optimizer]") {
  CHECK_THAT(error_of("Adam", R"({"amsgrad": true})"), Contains("AMSGrad is not supported"));
  CHECK_THAT(
      error_of("Muon", R"({"ns_method": "gram"})"),
      Contains("\"gram\" is refused: the Newton-Schulz iteration is done as published: write "
               "\"standard\""));
  CHECK_THAT(error_of("Adagrad", R"({"lr_decay": 0.1})"), Contains("\"scheduler\" block"));
  CHECK_THAT(error_of("Adagrad", R"({"initial_accumulator_value": 0.1})"), Contains("begin at 0"));
  CHECK_THAT(error_of("SGD", R"({"maximize": true})"), Contains("is minimised"));
  CHECK(error_of("Adagrad", R"({"lr_decay": 0.0, "initial_accumulator_value": 0})").empty());
}

TEST_CASE("parameters that contradict each other are refused", "[spec][optimizer]") {
  CHECK_THAT(error_of("SGD", R"({"nesterov": true})"),
             Contains("optimizer.params.nesterov: needs a momentum greater than 0 and a dampening "
                      "of 0; they are 0 and 0"));
  CHECK_THAT(error_of("SGD", R"({"nesterov": true, "momentum": 0.9, "dampening": 0.5})"),
             Contains("they are 0.9 and 0.5"));
  CHECK_THAT(
      error_of("RMSprop", R"({"centered": true, "momentum": 0.9})"),
      Contains("optimizer.params.centered: with a momentum of 0.9 RMSprop would keep a third "
               "state for every parameter"));
  CHECK_THAT(error_of("Lamb", R"({"min_coeff": 11})"),
             Contains("min_coeff: 11 is greater than max_coeff 10"));
  CHECK_THAT(error_of("SGD", R"({"momentum": 1})"), Contains("in [0, 1), found 1"));
  CHECK_THAT(error_of("Muon", R"({"muon_lr": 0})"), Contains("greater than 0, found 0"));
}

}  // namespace dstrain
