#include "engine/train/records/rollouts_file.h"

#include <nlohmann/json.hpp>

namespace dstrain {

RolloutsFile::RolloutsFile(const std::filesystem::path& output_dir, std::int64_t resumed_step)
    : lines_(output_dir / kFile, resumed_step) {}

void RolloutsFile::write(const StepMetrics& metrics, bool /*is_last*/) {
  for (const SampledRollout& rollout : metrics.rollouts) {
    nlohmann::ordered_json line{{"step", metrics.step},
                                {"prompt", nlohmann::ordered_json::parse(rollout.prompt)},
                                {"completion", rollout.text},
                                {"reward", rollout.reward},
                                {"advantage", rollout.advantage},
                                {"truncated", rollout.is_truncated},
                                {"prompt_ids", rollout.prompt_ids},
                                {"completion_ids", rollout.ids}};
    if (rollout.score) line["score"] = *rollout.score;
    lines_.add(metrics.step, line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  lines_.flush();
}

}  // namespace dstrain
