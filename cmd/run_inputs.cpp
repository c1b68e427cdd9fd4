#include "cmd/run_inputs.h"

#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/recognise_format.h"
#include "engine/config/config_error.h"
#include "engine/config/dataset_description.h"
#include "engine/data/token_file_format.h"

namespace dstrain {

void require_inputs(const Config& config) {
  std::string missing;
  for (const auto* sources : {&config.data.train, &config.data.validation}) {
    for (const DataSource& source : *sources) {
      try {
        if (names_json_lines(source.prefix)) {
          if (!std::filesystem::is_regular_file(source.prefix)) {
            throw ConfigError(fmt::format("{}: no such file", source.prefix));
          }
          continue;
        }
        require_token_file(source.prefix);
      } catch (const ConfigError& error) {
        missing += (missing.empty() ? "" : "; ") + std::string(error.what());
      }
    }
  }
  if (!missing.empty()) throw ConfigError(missing);
  if (config.checkpoint.resume == ResumeMode::kPath) {
    refuse_to_resume_deepspeed(config.checkpoint.resume_path);
    static_cast<void>(CheckpointStore::contents(config.checkpoint.resume_path));
  }
}

}  // namespace dstrain
