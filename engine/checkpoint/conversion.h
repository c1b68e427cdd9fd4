// convert_checkpoint: turns a checkpoint of one format into one of another. It streams tensor by
// tensor, so that memory stays below a few hundred MiB whatever the model; everything written is
// read back from the disk before it gets its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/durable_files.h"
#include "engine/checkpoint/recognise_format.h"
#include "engine/config/model_spec.h"
#include "kernels/core/dtype.h"

namespace dstrain {

enum class TargetFormat : std::uint8_t {
  kDstrain,      ///< a folder with manifest.json
  kHuggingFace,  ///< a folder that transformers loads
  kLlmC,         ///< one .bin file: GPT-2 only
  kPeft,         ///< a folder of adapters that PEFT loads
  kF32           ///< one .safetensors file of f32 under Hugging Face's names
};

/// "dstrain", "huggingface", "llmc", "peft", "fp32"
std::string_view name_of(TargetFormat format);
/// "a dstrain checkpoint", for sentences.
std::string_view describe(TargetFormat format);

struct ConversionRequest {
  std::filesystem::path from;
  std::filesystem::path to;
  std::filesystem::path model{};  ///< a DeepSpeed checkpoint's config.json; empty: beside it
  std::filesystem::path merge_adapter{};  ///< a folder of PEFT's whose adapter is merged; or empty
  std::filesystem::path base{};           ///< where a run's weights were moved to; or empty
  std::optional<TargetFormat> format;  ///< absent: inferred from the target's name and the source
  std::optional<DType> dtype;          ///< of the parameters; absent: as they are
  std::int64_t max_shard_bytes = 5'000'000'000;  ///< Hugging Face: of tensors in one file
  int ranks = 1;                                 ///< dstrain: files
  DiskProbe probe = {};
};

struct ConversionProgress {
  std::int64_t bytes_done = 0;   ///< written and read back
  std::int64_t bytes_total = 0;  ///< twice what will be written
};

struct ConversionHooks {
  std::function<void(const ConversionProgress&)> on_progress = [](const ConversionProgress&) {};
  std::function<bool()> stop_requested = [] { return false; };
};

struct ConversionSummary {
  CheckpointFormat source_format{};
  std::filesystem::path source;  ///< of a run's folder, the checkpoint in it
  TargetFormat target_format{};
  ModelSpec model;
  std::int64_t step = 0;  ///< of a dstrain checkpoint
  std::int64_t tensors = 0;
  std::vector<std::string> files;       ///< data files, in the order written
  std::int64_t bytes = 0;               ///< of tensors
  std::int64_t files_taken_up = 0;      ///< that an interrupted conversion had finished
  bool optimizer_left_out = false;      ///< the source has states that the target has no place for
  std::string left_out;                 ///< TensorSource::left_out
  std::vector<std::string> companions;  ///< config and tokenizer files
  double seconds = 0.0;
};

/// Returns nothing if it was asked to stop; a folder that is not finished is resumed when the same
/// conversion is asked for again. Throws ConfigError, CheckpointError and StorageError.
std::optional<ConversionSummary> convert_checkpoint(const ConversionRequest& request,
                                                    const ConversionHooks& hooks);

}  // namespace dstrain
