// The data of a run as token files: sources that are JSON lines of conversations, pairs, … become
// samples first, in <output_dir>/data, once for each host that sees that folder. What is there from
// an earlier start is taken if file, tokenizer, template and settings are the same.
#pragma once

#include <filesystem>
#include <functional>

#include "engine/config/config.h"

namespace dstrain {

/// `data` with the prefixes of token files in place of JSON lines, which are made in `folder` where
/// they are not there yet; other processes that want the same wait meanwhile. `model_folder` is
/// where the tokenizer is looked for if the config names none. `stop_requested` ends the work, and
/// then the prefixes name nothing. Throws ConfigError and DiskError.
DataConfig with_prepared_samples(const DataConfig& data,
                                 const std::string& model_folder,
                                 const std::filesystem::path& folder,
                                 const std::function<bool()>& stop_requested);

/// The same for a run, in its output folder.
DataConfig with_prepared_samples(const Config& config, const std::function<bool()>& stop_requested);

}  // namespace dstrain
