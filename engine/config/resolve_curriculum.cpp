// Checks that growing sequences have a length at every step that every layout can process.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"
#include "kernels/core/f8.h"

namespace dstrain {
namespace {

const std::string kBlock = "curriculum_learning.";
const std::string kSchedule = "curriculum_learning.schedule_config.";

void require(bool is_there, const std::string& path, const char* what_to_write) {
  if (!is_there) {
    throw_config_error("", path, fmt::format("is missing: write {}", what_to_write));
  }
}

void check_discrete(const SequenceRamp& ramp, Origins& origins) {
  const std::string lengths = kSchedule + "difficulty";
  const std::string steps = kSchedule + "max_step";
  require(!ramp.lengths.empty(), lengths, "the lengths of sequences, such as [64, 128, 256]");
  require(!ramp.last_steps.empty(), steps,
          "the step until which each length but the last is used, such as [100, 200]");
  if (ramp.lengths.size() != ramp.last_steps.size() + 1) {
    throw_config_error(
        origins[lengths], lengths,
        fmt::format(
            "[{}] has {} lengths, and max_step [{}] has {} steps: expected one length more, "
            "which all later steps take",
            fmt::join(ramp.lengths, ", "), ramp.lengths.size(), fmt::join(ramp.last_steps, ", "),
            ramp.last_steps.size()));
  }
  if (std::adjacent_find(ramp.last_steps.begin(), ramp.last_steps.end(), std::greater_equal<>()) !=
      ramp.last_steps.end()) {
    throw_config_error(origins[steps], steps,
                       fmt::format("[{}]: expected each step to be later than the one before",
                                   fmt::join(ramp.last_steps, ", ")));
  }
}

void check_growth(const SequenceRamp& ramp) {
  require(ramp.total_steps > 0, kSchedule + "total_curriculum_step",
          "the number of steps until sequences have max_difficulty tokens");
  require(ramp.multiple_of > 0, kSchedule + "difficulty_step",
          "the number of tokens that lengths are multiples of, such as 8");
  require(ramp.schedule == LengthSchedule::kFixedLinear || ramp.root_degree > 0,
          kSchedule + "root_degree", "the root by which lengths grow, such as 2");
}

/// All lengths to check: those of a list, or the one that all others are multiples of and the
/// longest. None is longer than the run's sequences.
std::vector<std::pair<std::string, std::int64_t>> lengths_of(const SequenceRamp& ramp,
                                                             std::int64_t sequence) {
  std::vector<std::pair<std::string, std::int64_t>> lengths;
  if (ramp.schedule == LengthSchedule::kFixedDiscrete) {
    for (const std::int64_t length : ramp.lengths) {
      lengths.emplace_back(kSchedule + "difficulty", std::min(length, sequence));
    }
  } else {
    lengths = {{kSchedule + "difficulty_step", ramp.multiple_of},
               {kBlock + "max_difficulty", std::min(ramp.longest, sequence)}};
  }
  return lengths;
}

void check_lengths(const Config& config, std::int64_t unit, const char* whose, Origins& origins) {
  for (const auto& [path, length] : lengths_of(config.curriculum, config.data.sequence_length)) {
    if (length % unit != 0) {
      throw_config_error(
          origins[path], path,
          fmt::format("sequences of {} tokens are not a multiple of {}, as {} asks: the nearest "
                      "lengths that do are {}",
                      length, unit, whose, nearest_multiples(length, unit)));
    }
  }
}

void check_tokens(const Config& config, std::int64_t unit, const char* whose, Origins& origins) {
  const std::int64_t micro = config.batch.micro_batch_size.value();
  const std::int64_t of_length = unit / std::gcd(micro, unit);
  for (const auto& [path, length] : lengths_of(config.curriculum, config.data.sequence_length)) {
    if (length % of_length != 0) {
      throw_config_error(
          origins[path], path,
          fmt::format(
              "{} tokens in each of the {} sequences of a micro-batch are not a multiple of {}, "
              "as {} asks: the nearest lengths that do are {}",
              length, micro, unit, whose, nearest_multiples(length, of_length)));
    }
  }
}

}  // namespace

void resolve_curriculum(LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const SequenceRamp& ramp = config.curriculum;
  if (!ramp.enabled) {
    return;
  }
  require(ramp.shortest > 0, kBlock + "min_difficulty", "the tokens of the shortest sequences");
  require(ramp.longest > 0, kBlock + "max_difficulty",
          "the tokens of the longest sequences, usually data.sequence_length");
  if (ramp.shortest > ramp.longest) {
    throw_config_error(origins[kBlock + "min_difficulty"], kBlock + "min_difficulty",
                       fmt::format("{} is more than max_difficulty {}: expected at most that",
                                   ramp.shortest, ramp.longest));
  }
  if (ramp.schedule == LengthSchedule::kFixedDiscrete) {
    check_discrete(ramp, origins);
  } else {
    check_growth(ramp);
  }
  if (config.training.cuda_graphs) {
    throw_config_error(origins["training.cuda_graphs"], "training.cuda_graphs",
                       "true, with curriculum_learning, whose sequences have many lengths, and a "
                       "graph has one: expected false, or no curriculum");
  }
  if (config.tensor_parallel.sequence_parallel) {
    check_tokens(config, config.tensor_parallel.size * config.context_parallel.size,
                 "tensor_parallel.sequence_parallel", origins);
  }
  if (config.fp8.enabled) {
    check_tokens(config, kF8Multiple * config.context_parallel.size, "fp8", origins);
  }
  check_lengths(config, config.context_parallel.unit(), "context_parallel.size", origins);
  if (config.data.pack != DocumentPack::kNone) {
    loaded.notices.emplace_back(
        "curriculum_learning with data.pack: a step of shorter sequences takes their first tokens, "
        "and leaves out the documents behind these, mostly the short ones");
  }
  const std::int64_t last = ramp.length_at(std::numeric_limits<std::int64_t>::max());
  if (last < config.data.sequence_length) {
    loaded.notices.push_back(
        fmt::format("curriculum_learning: sequences grow to {} tokens, and the rest of the {} of "
                    "data.sequence_length is never trained on",
                    last, config.data.sequence_length));
  }
}

}  // namespace dstrain
