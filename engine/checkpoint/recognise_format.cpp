#include "engine/checkpoint/recognise_format.h"

#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "engine/base/regular_file.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/conversion_folder.h"
#include "engine/checkpoint/foreign/llmc/gpt2_file.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/step_folders.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

template <typename Matches>
bool holds_file(const fs::path& folder, Matches&& matches) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (matches(entry->path().filename().string())) {
      return true;
    }
  }
  return false;
}

bool is_checkpoints_folder(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(folder, error) && !list_step_folders(folder).empty();
}

RecognisedCheckpoint newest_in(const fs::path& folder) {
  const auto newest = CheckpointStore(folder).latest();
  if (!newest) {
    throw CheckpointError(fmt::format("{} holds no whole checkpoint", folder.string()));
  }
  return {CheckpointFormat::kDstrain, *newest};
}

/// Whether this is one step of a DeepSpeed checkpoint: model and optimizer states by rank, or one
/// folder per parameter.
bool is_deepspeed_step(const fs::path& folder) {
  return is_there(folder / "zero") || holds_file(folder, [](const std::string& name) {
           return name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt");
         });
}

std::optional<fs::path> deepspeed_step(const fs::path& folder) {
  for (const char* pointer : {"latest", "latest_universal"}) {
    std::string step;
    if (std::istringstream(read_regular_file((folder / pointer).string()).text) >> step &&
        is_deepspeed_step(folder / step)) {
      return folder / step;
    }
  }
  return is_deepspeed_step(folder) ? std::optional(folder) : std::nullopt;
}

RecognisedCheckpoint recognise_file(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    throw ConfigError(fmt::format("{}: {}", file.string(), open_regular_file(file.string()).why));
  }
  if (is_llmc_gpt2_file(file)) {
    return {CheckpointFormat::kLlmC, file};
  }
  const std::string name = file.string();
  const std::string advice =
      file.extension() == ".safetensors"
          ? fmt::format(": name its folder, {}, which must hold a config.json too",
                        file.parent_path().empty() ? "." : file.parent_path().string())
      : file.filename() == kManifestName
          ? fmt::format(": name its folder, {}", file.parent_path().string())
          : "";
  throw ConfigError(
      fmt::format("{}: is a file, but not an llm.c GPT-2 model, the only kind of checkpoint "
                  "that is one file{}",
                  name, advice));
}

}  // namespace

std::string_view name_of(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::kDstrain:
      return "dstrain";
    case CheckpointFormat::kHuggingFace:
      return "huggingface";
    case CheckpointFormat::kDeepSpeed:
      return "deepspeed";
    case CheckpointFormat::kLlmC:
      return "llmc";
  }
  return "";
}

std::string_view describe(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::kDstrain:
      return "a dstrain checkpoint";
    case CheckpointFormat::kHuggingFace:
      return "a Hugging Face folder";
    case CheckpointFormat::kDeepSpeed:
      return "a DeepSpeed checkpoint";
    case CheckpointFormat::kLlmC:
      return "an llm.c model";
  }
  return "";
}

RecognisedCheckpoint recognise_format(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw ConfigError(fmt::format("{}: there is no such file or folder", path.string()));
  }
  if (!fs::is_directory(status)) {
    return recognise_file(path);
  }
  if (is_unfinished_conversion(path)) {
    throw ConfigError(fmt::format(
        "{}: is a conversion that was interrupted: run the same dstrain convert-checkpoint again "
        "to finish it",
        path.string()));
  }
  if (is_there(path / kManifestName)) {
    return {CheckpointFormat::kDstrain, path};
  }
  for (const fs::path& folder : {path, path / "checkpoints"}) {
    if (is_checkpoints_folder(folder)) {
      return newest_in(folder);
    }
  }
  if (const auto step = deepspeed_step(path)) {
    return {CheckpointFormat::kDeepSpeed, *step};
  }
  const auto is_safetensors = [](const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
  };
  const bool has_config = is_there(path / "config.json");
  if (has_config && holds_file(path, is_safetensors)) {
    return {CheckpointFormat::kHuggingFace, path};
  }
  const bool has_pickle =
      holds_file(path, [](const std::string& name) { return name.starts_with("pytorch_model"); });
  throw ConfigError(fmt::format(
      "{}: holds no checkpoint: {}", path.string(),
      has_config && has_pickle ? "its weights are in PyTorch's pickle format, which is not read: "
                                 "save them as safetensors"
      : has_config             ? "there is a config.json, but no *.safetensors"
      : holds_file(path, is_safetensors)
          ? "there are *.safetensors, but no config.json that describes the model"
          : "expected a dstrain checkpoint (manifest.json) or a run's folder, a Hugging Face "
            "folder (config.json and *.safetensors), or a DeepSpeed checkpoint"));
}

void refuse_to_resume_deepspeed(const fs::path& path) {
  const auto step = deepspeed_step(path);
  if (!step || is_there(path / kManifestName)) {
    return;
  }
  fs::path folder = path.lexically_normal();
  folder = folder.has_filename() ? folder : folder.parent_path();  // "folder/"
  const bool knows_model =
      is_there(*step / "config.json") || is_there(step->parent_path() / "config.json");
  throw ConfigError(fmt::format(
      "checkpoint.resume: {0} is a DeepSpeed checkpoint; convert it with dstrain "
      "convert-checkpoint --from {0} --to {0}-dstrain{1} and set checkpoint.resume to {0}-dstrain",
      folder.string(), knows_model ? "" : " --model CONFIG (the model's config.json)"));
}

}  // namespace dstrain
