#include "engine/train/records/sampled_texts.h"

#include <nlohmann/json.hpp>

namespace dstrain {

SampledTexts::SampledTexts(const std::filesystem::path& output_dir, std::int64_t resumed_step)
    : lines_(output_dir / kFile, resumed_step) {}

void SampledTexts::write(const StepMetrics& metrics, bool /*is_last*/) {
  for (const SampledText& text : metrics.texts) {
    const nlohmann::ordered_json line{{"step", metrics.step},
                                      {"prompt", text.prompt},
                                      {"text", text.text},
                                      {"tokens", text.tokens},
                                      {"ended_by", text.ended_by}};
    lines_.add(metrics.step, line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  lines_.flush();
}

}  // namespace dstrain
