// "preferences": training on pairs of answers, or on rated ones, with the names of TRL's
// configurations.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kPreferences{"preferences.", &Config::preferences};

/// Shown where there are preferences.
Key of_preferences(Key key) {
  key.get = [get = std::move(key.get)](const Config& config) {
    return config.preferences.enabled() ? get(config) : std::string();
  };
  return null_is_default(std::move(key));
}

}  // namespace

std::vector<Key> preference_keys() {
  return {
      of_preferences(kPreferences.choice("loss_type",
                                         {{"sigmoid", PreferenceLoss::kSigmoid},
                                          {"hinge", PreferenceLoss::kHinge},
                                          {"ipo", PreferenceLoss::kIpo},
                                          {"robust", PreferenceLoss::kRobust},
                                          {"apo_zero", PreferenceLoss::kApoZero},
                                          {"apo_down", PreferenceLoss::kApoDown},
                                          {"orpo", PreferenceLoss::kOrpo},
                                          {"reward", PreferenceLoss::kReward},
                                          {"kto", PreferenceLoss::kKto},
                                          {"apo_zero_unpaired", PreferenceLoss::kApoZeroUnpaired}},
                                         &PreferenceConfig::loss)),
      of_preferences(kPreferences.field("beta", above(0), &PreferenceConfig::beta)),
      of_preferences(kPreferences.field("label_smoothing",
                                        {.low = 0, .high = 0.5, .high_open = true},
                                        &PreferenceConfig::label_smoothing)),
      of_preferences(kPreferences.field("center_rewards_coefficient", at_least(0),
                                        &PreferenceConfig::center_rewards_coefficient)),
      of_preferences(
          kPreferences.field("desirable_weight", at_least(0), &PreferenceConfig::desirable_weight)),
      of_preferences(kPreferences.field("undesirable_weight", at_least(0),
                                        &PreferenceConfig::undesirable_weight)),
  };
}

}  // namespace dstrain
