// prepare_data: turns text into PREFIX/train.{bin,idx} and PREFIX/validation.{bin,idx}, in
// Megatron's format, with the tokenizer's model beside them. A text file is one document, and so is
// each line of JSON lines; both may be compressed. The input streams through: what is in memory is
// a few MiB for each thread, a few hundred bytes for each file and some tens for each document.
// Documents that are not text or that repeat another are left out; input that holds text in another
// form (archives, Parquet) is refused. Either all of the output appears, at the end, or none; what
// was done until an interruption is kept beside it, and the same call resumes from there
// (resume_record.h).
#pragma once

#include <optional>
#include <string>

#include "engine/data/prepare_hooks.h"
#include "engine/data/prepare_options.h"
#include "engine/data/prepare_summary.h"

namespace dstrain {

/// Returns nothing if it was stopped on request. What was done by then, or before it throws, is
/// kept: where has_unfinished() says so, the same call resumes from there. Throws ConfigError and
/// DiskError.
std::optional<PrepareSummary> prepare_data(const PrepareOptions& options,
                                           const PrepareHooks& hooks);

/// Whether the folder holds what an interrupted call left.
bool has_unfinished(const std::string& output);

}  // namespace dstrain
