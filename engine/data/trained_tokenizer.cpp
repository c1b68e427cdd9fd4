#include "engine/data/trained_tokenizer.h"

#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "engine/base/regular_file.h"
#include "engine/base/usable_cores.h"
#include "engine/config/config_error.h"
#include "engine/data/bpe_training.h"
#include "engine/data/output_file.h"
#include "engine/data/sentencepiece_training.h"

namespace dstrain {
namespace {

/// The tokenizer's source, without the contents of its files.
TokenizerSource empty_source(const PrepareOptions& options) {
  const auto in_output = [&](const char* name) {
    return (std::filesystem::path(options.output) / name).string();
  };
  if (options.train_bpe) {
    return {.name = "huggingface:" + in_output("tokenizer.json"),
            .kind = "huggingface",
            .files = {{"tokenizer.json", ""}, {"tokenizer_config.json", ""}}};
  }
  return {.name = "sentencepiece:" + in_output("tokenizer.model"),
          .kind = "sentencepiece",
          .files = {{"tokenizer.model", ""}}};
}

std::string train_model(const PrepareOptions& options,
                        const std::vector<InputFile>& files,
                        const PrepareHooks& hooks) {
  hooks.on_progress({.phase = PrepareProgress::Phase::kTraining});
  std::vector<const InputFile*> pointers;
  for (const InputFile& file : files) {
    pointers.push_back(&file);
  }
  return train_sentencepiece(pointers,
                             {.vocab_size = *options.train_sentencepiece,
                              .seed = options.seed,
                              .threads = options.threads > 0 ? options.threads : num_usable_cores(),
                              .field = JsonField(options.field.value_or("text")),
                              .longest_line = options.longest_line},
                             hooks.stop_requested);
}

}  // namespace

bool makes_tokenizer(const PrepareOptions& options) {
  return options.train_sentencepiece || options.train_bpe;
}

std::pair<std::string, std::string> training_setting(const PrepareOptions& options,
                                                     const FoundInput& input) {
  const std::string files = input.hash_before({.file = input.files.size(), .byte = 0});
  if (options.train_bpe) {
    const BpeTraining& bpe = *options.train_bpe;
    return {"--train-tokenizer", fmt::format("bpe {} \"{}\" \"{}\" of {}", bpe.vocab_size,
                                             bpe.split, bpe.document_end, files)};
  }
  return {"--train-sentencepiece", fmt::format("{} of {}", *options.train_sentencepiece, files)};
}

std::optional<TokenizerSource> train_tokenizer(const PrepareOptions& options,
                                               const FoundInput& input,
                                               const PrepareHooks& hooks) {
  std::vector<InputFile> files;
  for (std::size_t i = 0; i < input.files.size(); ++i) {
    if (!input.is_validation[i]) {
      files.push_back(input.files[i]);
    }
  }
  TokenizerSource source = empty_source(options);
  if (options.train_bpe) {
    auto made = train_bpe(files, options, hooks);
    if (!made) {
      return std::nullopt;
    }
    source.files[0].second = std::move(*made);
    source.files[1].second = bpe_tokenizer_config(*options.train_bpe);
  } else {
    source.files[0].second = train_model(options, files, hooks);
  }
  return source;
}

TokenizerSource kept_tokenizer(const PrepareOptions& options) {
  TokenizerSource source = empty_source(options);
  for (auto& [name, content] : source.files) {
    const std::string path = partial_path((std::filesystem::path(options.output) / name).string());
    FileText file = read_regular_file(path);
    if (!file.why.empty()) {
      throw ConfigError(fmt::format("--output {}: {}: {}; --overwrite starts over", options.output,
                                    path, file.why));
    }
    content = std::move(file.text);
  }
  return source;
}

}  // namespace dstrain
