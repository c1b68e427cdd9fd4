// Recognises whose checkpoint lies at a path, by names and first bytes, without asking the user. A
// run's folder, or its folder of checkpoints, stands for the newest whole one in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace dstrain {

enum class CheckpointFormat : std::uint8_t { kDstrain, kHuggingFace, kDeepSpeed, kLlmC };

/// "dstrain", "huggingface", "deepspeed", "llmc"
std::string_view name_of(CheckpointFormat format);
/// "a dstrain checkpoint", for sentences.
std::string_view describe(CheckpointFormat format);

struct RecognisedCheckpoint {
  CheckpointFormat format;
  std::filesystem::path path;  ///< the checkpoint itself: of a run, its newest
};

/// Throws ConfigError, saying what is there instead, and CheckpointError if it is a run's folder
/// without a whole checkpoint.
RecognisedCheckpoint recognise_format(const std::filesystem::path& path);

/// Throws ConfigError if checkpoint.resume names a DeepSpeed checkpoint, a step of it or the folder
/// around it; the error gives the command that makes one of ours of it.
void refuse_to_resume_deepspeed(const std::filesystem::path& path);

}  // namespace dstrain
