// Finds the tokenizer that a checkpoint's tokens belong to, where the run, prepare-data or Hugging
// Face recorded it. It is never guessed from the size of a vocabulary.
//
//   1 what the user names
//   2 the checkpoint's own record, with the tokenizer's file beside it
//   3 tokenizer.json (which transformers takes first), tokenizer.model, or vocab.json and
//   merges.txt
//     beside the weights
//   4 dataset.json in a folder of the run's training data
//   5 the same as 3 beside the weights that the run started from
//
// 4 and 5 lie outside the checkpoint and serve checkpoints that older versions wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/run_facts.h"
#include "engine/tokenizer/tokenizer.h"

namespace dstrain {

struct FoundTokenizer {
  std::string name;  ///< as TokenizerSource has it: "bytes", "huggingface:FILE"
  std::unique_ptr<Tokenizer> tokenizer;
  /// The id in front of a text: always, as Hugging Face's LLaMA models have it, or only so that an
  /// empty prompt has something to continue.
  std::optional<std::int32_t> beginning;
  bool always_begins = false;
  std::vector<std::int32_t> ends;  ///< ids behind which nothing of the text follows
};

/// `asked` is what TokenizerSource::find takes, or empty to look for one. Throws a ConfigError that
/// says where it looked.
FoundTokenizer find_tokenizer(const std::string& asked,
                              const std::filesystem::path& checkpoint,
                              const RunFacts& run);

}  // namespace dstrain
