#include "engine/checkpoint/training_text.h"

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {
namespace {

using nlohmann::json;

std::string text_of(const std::map<std::string, std::vector<AmaxPeak>>& histories) {
  std::string text;
  for (const auto& [tensor, peaks] : histories) {
    text += fmt::format("{}\n  {}: [", text.empty() ? "" : ",", json(tensor).dump());
    for (std::size_t i = 0; i < peaks.size(); ++i) {
      text += fmt::format("{}[{}, {}]", i == 0 ? "" : ", ", peaks[i].age, peaks[i].exponent);
    }
    text += "]";
  }
  return text;
}

std::vector<AmaxPeak> parse_history(const json& value) {
  constexpr std::int64_t kMostExponent = 200;
  std::vector<AmaxPeak> peaks;
  for (const json& pair : value) {
    const AmaxPeak peak{.age = pair.at(0).get<std::int64_t>(),
                        .exponent = pair.at(1).get<std::int32_t>()};
    const bool falls =
        peaks.empty() || (peak.age < peaks.back().age && peak.exponent < peaks.back().exponent);
    if (!falls || peak.age < 0 || std::abs(peak.exponent) > kMostExponent) {
      throw CheckpointError("the ages and exponents of an fp8 history fall, from one to the next");
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace

std::string to_text(const TrainingState& training) {
  return fmt::format(
      "\"training\": {{\"step\": {}, \"consumed_samples\": {}, \"optimizer_step\": {}, "
      "\"scheduler_step\": {}, \"skipped_steps\": {}, \"consecutive_skips\": {}, \"loss_scale\": "
      "{}, "
      "\"scaler_iteration\": {}, \"last_overflow\": {}, \"hysteresis\": {}, \"seed\": {}}},\n"
      "\"config\": {},\n\"fp8_amax\": {{{}}},\n\"optimizer\": {},\n\"tokenizer\": {},\n\"data\": "
      "{},\n\"base\": {},\n",
      training.step, training.consumed_samples, training.optimizer_step, training.scheduler_step,
      training.skipped_steps, training.consecutive_skips, training.loss_scale,
      training.scaler_iteration, training.last_overflow, training.hysteresis, training.seed,
      json(training.config).dump(), text_of(training.fp8_amax),
      json(training.optimizer_numbers).dump(),
      training.tokenizer ? to_json(*training.tokenizer).dump() : "null",
      // Paths need not be UTF-8; invalid bytes are replaced.
      json(training.data).dump(-1, ' ', false, json::error_handler_t::replace),
      training.base
          ? json{{"path", training.base->path}, {"identity", training.base->identity}}.dump(
                -1, ' ', false, json::error_handler_t::replace)
          : "null");
}

TrainingState parse_training(const json& document) {
  const json& value = document.at("training");
  TrainingState state;
  value.at("step").get_to(state.step);
  value.at("consumed_samples").get_to(state.consumed_samples);
  value.at("optimizer_step").get_to(state.optimizer_step);
  value.at("scheduler_step").get_to(state.scheduler_step);
  value.at("seed").get_to(state.seed);
  document.at("config").get_to(state.config);
  const int format = document.at("dstrain_checkpoint").get<int>();
  if ((format >= kFormatWithSkips) != value.contains("skipped_steps") ||
      (format >= kFormatWithFp8) != document.contains("fp8_amax") ||
      (format >= kFormatWithTokenizer) != document.contains("tokenizer") ||
      (format >= kFormatWithNumbers) != document.contains("optimizer") ||
      (format >= kFormatWithBase) != document.contains("base") ||
      (format >= kFormatWithRollouts) != document.contains("rollouts")) {
    throw CheckpointError("its keys are not those of its format");
  }
  if (format >= kFormatWithSkips) {
    value.at("skipped_steps").get_to(state.skipped_steps);
    value.at("consecutive_skips").get_to(state.consecutive_skips);
    value.at("loss_scale").get_to(state.loss_scale);
    value.at("scaler_iteration").get_to(state.scaler_iteration);
    value.at("last_overflow").get_to(state.last_overflow);
    value.at("hysteresis").get_to(state.hysteresis);
  }
  if (format >= kFormatWithFp8) {
    for (const auto& [tensor, history] : document.at("fp8_amax").items()) {
      state.fp8_amax.emplace(tensor, parse_history(history));
    }
  }
  if (format >= kFormatWithNumbers) {
    document.at("optimizer").get_to(state.optimizer_numbers);
  }
  if (format >= kFormatWithTokenizer) {
    if (const json& tokenizer = document.at("tokenizer"); !tokenizer.is_null()) {
      state.tokenizer = parse_tokenizer_identity(tokenizer);
      if (!state.tokenizer) {
        throw CheckpointError("its tokenizer is of no known kind");
      }
    }
    document.at("data").get_to(state.data);
  }
  if (format >= kFormatWithBase && !document.at("base").is_null()) {
    const json& base = document.at("base");
    state.base = BaseWeights{.path = base.at("path").get<std::string>(),
                             .identity = base.at("identity").get<std::string>()};
  }
  return state;
}

}  // namespace dstrain
