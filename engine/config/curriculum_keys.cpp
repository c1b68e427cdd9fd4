// "curriculum_learning": DeepSpeed's sequences that grow at the start of a run.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kCurriculum{"curriculum_learning.", &Config::curriculum};

constexpr double kMost = 1e15;

/// Shows the key only where the curriculum is switched on.
Key shown_if_enabled(Key key) {
  key.get = [get = std::move(key.get)](const Config& config) {
    return config.curriculum.enabled ? get(config) : std::string();
  };
  return key;
}

template <typename Member>
Key ramped(const char* name, Member SequenceRamp::*member) {
  return shown_if_enabled(kCurriculum.field(name, between(1, kMost), member));
}

Key integers(const char* name, std::vector<std::int64_t> SequenceRamp::*member) {
  Key key{.path = std::string("curriculum_learning.schedule_config.") + name,
          .kind = KeyKind::kAny};
  key.shape = R"({"type": "array", "minItems": 1,
                  "items": {"type": "integer", "minimum": 1, "maximum": 1e15}})";
  key.set = [member, path = key.path](ConfigDraft& draft, const JsonNode& node) {
    auto numbers = positive_integers(node, kMost);
    if (!numbers) {
      throw_config_error(
          node.where, path,
          "must be a list of positive integers, such as [64, 128]; found " + node.dump());
    }
    draft.config.curriculum.*member = std::move(*numbers);
  };
  key.get = [member](const Config& c) -> std::string {
    const std::vector<std::int64_t>& numbers = c.curriculum.*member;
    return numbers.empty() ? "" : fmt::format("[{}]", fmt::join(numbers, ", "));
  };
  return shown_if_enabled(std::move(key));
}

/// A schedule has some of the parameters, and the others are 0.
Key shown_if_set(Key key, std::function<bool(const SequenceRamp&)> is_set) {
  key.get = [get = std::move(key.get), is_set = std::move(is_set)](const Config& config) {
    return is_set(config.curriculum) ? get(config) : std::string();
  };
  return key;
}

}  // namespace

std::vector<Key> curriculum_keys() {
  return {
      shown_if_enabled(kCurriculum.field("enabled", {}, &SequenceRamp::enabled)),
      refused("curriculum_learning.curriculum_type", {"\"seqlen\""},
              "the length of sequences, \"seqlen\", is what grows"),
      ramped("min_difficulty", &SequenceRamp::shortest),
      ramped("max_difficulty", &SequenceRamp::longest),
      shown_if_enabled(kCurriculum.choice("schedule_type",
                                          {{"fixed_linear", LengthSchedule::kFixedLinear},
                                           {"fixed_root", LengthSchedule::kFixedRoot},
                                           {"fixed_discrete", LengthSchedule::kFixedDiscrete}},
                                          &SequenceRamp::schedule)),
      shown_if_set(ramped("schedule_config.total_curriculum_step", &SequenceRamp::total_steps),
                   [](const SequenceRamp& ramp) { return ramp.total_steps > 0; }),
      shown_if_set(ramped("schedule_config.difficulty_step", &SequenceRamp::multiple_of),
                   [](const SequenceRamp& ramp) { return ramp.multiple_of > 0; }),
      shown_if_set(shown_if_enabled(kCurriculum.field("schedule_config.root_degree", above(0),
                                                      &SequenceRamp::root_degree)),
                   [](const SequenceRamp& ramp) { return ramp.root_degree > 0; }),
      integers("difficulty", &SequenceRamp::lengths),
      integers("max_step", &SequenceRamp::last_steps),
  };
}

}  // namespace dstrain
