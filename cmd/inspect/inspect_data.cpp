#include "cmd/inspect/inspect_data.h"

#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "cmd/inspect/inspected_json.h"
#include "cmd/inspect/inspected_prompts.h"
#include "cmd/inspect/inspected_run.h"
#include "cmd/inspect/inspected_text.h"
#include "cmd/inspect/shown_data.h"
#include "engine/config/config_error.h"
#include "engine/config/config_json.h"
#include "engine/config/json_text.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

std::string prefix_of(const std::string& dataset) {
  std::error_code ignored;
  if (fs::is_directory(dataset, ignored)) {
    return (fs::path(dataset) / "train").string();
  }
  return dataset.ends_with(".bin") || dataset.ends_with(".idx")
             ? dataset.substr(0, dataset.size() - 4)
             : dataset;
}

LoadedConfig config_of(const InspectRequest& request) {
  LoadOptions options;
  if (!request.dataset.empty()) {
    options.overrides.push_back("data.train=" + json_quote(prefix_of(request.dataset)));
  }
  LoadedConfig loaded = load_config(request.config, options);
  resolve_data(loaded);
  return loaded;
}

InspectedRun run_of_config(const LoadedConfig& loaded, const InspectRequest& request) {
  const ShownData shown(loaded.config);
  return inspect_run({.data = shown.data(),
                      .vocab_size = loaded.config.model.vocab_size,
                      .seed = loaded.config.training.seed,
                      .curriculum = loaded.config.curriculum},
                     request.samples);
}

InspectedRun run_of_flags(const InspectRequest& request) {
  const DocumentPack pack = request.packed ? DocumentPack::kBestFit : DocumentPack::kNone;
  if (request.packed && request.sequence > kLongestPackedSequence) {
    throw ConfigError(fmt::format("--sequence-length {}: documents are packed into at most {}",
                                  request.sequence, kLongestPackedSequence));
  }
  return inspect_run({.data = {.train = {{.prefix = prefix_of(request.dataset)}},
                               .sequence_length = request.sequence,
                               .pack = pack},
                      .vocab_size = std::numeric_limits<std::int32_t>::max(),
                      .seed = request.seed},
                     request.samples);
}

}  // namespace

std::string inspect_data(const InspectRequest& request) {
  std::optional<LoadedConfig> loaded;
  if (!request.config.empty()) loaded = config_of(request);
  if (loaded && loaded->config.policy.enabled()) {
    return inspected_prompts(loaded->config, request.samples,
                             request.json ? PromptForm::kJson : PromptForm::kText);
  }
  const InspectedRun run = loaded ? run_of_config(*loaded, request) : run_of_flags(request);
  return request.json ? inspected_json(run)
                      : inspected_text(run, {.config = request.config, .colours = request.colours});
}

}  // namespace dstrain
