// Makes a byte-level BPE tokenizer of the input's text: all of it, read as a stream, is cut into
// pieces, which are counted, then their most frequent pairs become tokens (train_bpe.h). 8 Mi
// distinct pieces of 128 MiB together are held at once, so that memory stays below 4 GiB; if the
// text has more, a half of its documents and MiB-long parts of them is counted instead, or a
// quarter, and so on, and the log says so.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/data/input/input_files.h"
#include "engine/data/prepare_hooks.h"
#include "engine/data/prepare_options.h"
#include "engine/tokenizer/piece_counter.h"

namespace dstrain {

/// Returns tokenizer.json's content; nothing if it was stopped on request. It uses the options of
/// the training and of reading the input. Throws ConfigError, also where the text has nothing to
/// learn from.
std::optional<std::string> train_bpe(const std::vector<InputFile>& files,
                                     const PrepareOptions& options,
                                     const PrepareHooks& hooks,
                                     PieceCounter::Limits limits = {});

/// tokenizer_config.json beside it: which class of transformers reads it, and the token that ends
/// documents.
std::string bpe_tokenizer_config(const BpeTraining& training);

}  // namespace dstrain
