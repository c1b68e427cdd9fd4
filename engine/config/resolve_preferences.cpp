// Completes what is learnt from people's preferences: what of the data is read, and what the
// model's head makes.
#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kLoss = "preferences.loss_type";

/// Keys that only some losses have.
void check_keys_of_losses(const PreferenceConfig& preferences, Origins& origins) {
  const PreferenceConfig defaults;
  const auto belongs = [&](const char* name, double PreferenceConfig::*member, bool has_it,
                           const char* loss) {
    if (has_it || preferences.*member == defaults.*member) return;
    const std::string key = std::string("preferences.") + name;
    throw_config_error(origins[key], key,
                       fmt::format("is of loss_type \"{}\": leave it out, or take that loss", loss),
                       {{ConfigEdit::Kind::kRemove, key, ""}});
  };
  const bool is_robust = preferences.loss == PreferenceLoss::kRobust;
  const bool single = preferences.of_single_answers();
  belongs("label_smoothing", &PreferenceConfig::label_smoothing, is_robust, "robust");
  belongs("center_rewards_coefficient", &PreferenceConfig::center_rewards_coefficient,
          preferences.of_scores(), "reward");
  belongs("desirable_weight", &PreferenceConfig::desirable_weight, single, "kto");
  belongs("undesirable_weight", &PreferenceConfig::undesirable_weight, single, "kto");
}

}  // namespace

void resolve_preferences(LoadedConfig& loaded, Origins& origins) {
  Config& config = loaded.config;
  const PreferenceConfig& preferences = config.preferences;
  if (config.model.scores && !preferences.of_scores()) {
    throw_config_error(
        origins["model.score_head"], "model.score_head",
        "the model's head scores, which loss_type \"reward\" alone trains: take that, or "
        "a model whose head has logits");
  }
  if (preferences.of_scores()) {
    config.model.scores = true;
    origins["model.score_head"] = "derived: preferences.loss_type \"reward\"";
  }
  if (!preferences.enabled()) {
    if (preferences == PreferenceConfig{}) return;
    throw_config_error("", kLoss, "missing: write which loss, such as \"sigmoid\" (DPO)");
  }
  check_keys_of_losses(preferences, origins);
  DataConfig& data = config.data;
  if (!data.samples) {
    throw_config_error(
        origins[kLoss], kLoss,
        "preferences are learnt from answers that were rated, and the data hold plain text: "
        "give JSON lines with \"chosen\" and \"rejected\", or what prepare-data "
        "--chat makes of them");
  }
  if (!data.document_attention) {
    throw_config_error(origins["data.document_attention"], "data.document_attention",
                       "a pair's two answers share a sequence, and would see each other: leave it "
                       "out");
  }
  if (data.sequence_length < 4) {
    throw_config_error(origins["data.sequence_length"], "data.sequence_length",
                       fmt::format("{}: a sequence holds a pair's two answers with their prompts",
                                   data.sequence_length));
  }
  if (config.fp8.enabled && preferences.needs_reference()) {
    throw_config_error(
        origins["fp8.enabled"], "fp8.enabled",
        "the reference of preferences is computed before the first step, by which 8-bit "
        "products find their scales: write false, or take \"orpo\"");
  }
  data.sample_kind = preferences.of_single_answers() ? SampleKind::kRated : SampleKind::kPairs;
  data.chosen_prompts = preferences.loss == PreferenceLoss::kOrpo;
}

}  // namespace dstrain
