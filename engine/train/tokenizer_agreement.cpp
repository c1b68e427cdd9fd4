#include "engine/train/tokenizer_agreement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/checkpoint/recognise_format.h"
#include "engine/config/config_error.h"
#include "engine/tokenizer/tokenizer_source.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNevertheless = "--allow-tokenizer-mismatch continues nevertheless";

/// Token files of this run, and what is known of them.
struct DescribedData {
  std::string key;  ///< "data.train"
  std::string prefix;
  DatasetDescription description;
};

std::vector<DescribedData> described_data(const DataConfig& data) {
  std::vector<DescribedData> found;
  const auto look_at = [&](const char* key, const std::vector<DataSource>& sources) {
    for (const DataSource& source : sources) {
      auto description = description_of_prefix(source.prefix);
      if (description && description->knows_tokenizer()) {
        found.push_back({key, source.prefix, std::move(*description)});
      }
    }
  };
  look_at("data.train", data.train);
  look_at("data.validation", data.validation);
  return found;
}

/// The tokenizers of weights that lie in `folder`; `record` is what their checkpoint records.
std::vector<TokenizerIdentity> tokenizers_of_weights(
    const fs::path& folder, const std::optional<TokenizerIdentity>& record) {
  return record ? std::vector{*record} : companions_of_folder(folder).tokenizers();
}

/// The tokenizer that contradicts the data's; none if any is the same, or none can be compared.
std::optional<TokenizerIdentity> contradicting(const std::vector<TokenizerIdentity>& weights,
                                               const TokenizerIdentity& data) {
  std::optional<TokenizerIdentity> other;
  for (const TokenizerIdentity& one : weights) {
    const std::optional<bool> same = is_same_tokenizer(one, data);
    if (same == true) {
      return std::nullopt;
    }
    if (same == false) {
      other = one;
    }
  }
  return other;
}

std::optional<std::string> conflict_in_data(const std::vector<DescribedData>& data) {
  const DescribedData& first = data.front();
  for (const DescribedData& other : data) {
    const TokenizerIdentity& identity = other.description.identity;
    if (is_same_tokenizer(identity, first.description.identity) == false) {
      return fmt::format(
          "{}: the ids of {} are of {}, says {}; those of {} ({}) are of {}, says {}: prepare both "
          "with one tokenizer; {}",
          other.key, other.prefix, describe(identity), other.description.file.string(),
          first.prefix, first.key, describe(first.description.identity),
          first.description.file.string(), kNevertheless);
    }
  }
  return std::nullopt;
}

std::optional<std::string> conflict_with_vocabulary(const std::vector<DescribedData>& data,
                                                    const ModelSpec& model) {
  for (const DescribedData& one : data) {
    const TokenizerIdentity& identity = one.description.identity;
    if (identity.vocab_size > model.vocab_size) {
      return fmt::format(
          "model.vocab_size: {} is too small for the ids of {} ({}), which are of {}, says {}: set "
          "it to {} or more, or prepare the data with the model's tokenizer; {}",
          model.vocab_size, one.prefix, one.key, describe(identity), one.description.file.string(),
          identity.vocab_size, kNevertheless);
    }
  }
  return std::nullopt;
}

std::optional<std::string> conflict_with_checkpoint(const DescribedData& data,
                                                    const ResumedFrom& from) {
  const auto other = contradicting(tokenizers_of_weights(from.path, from.training.tokenizer),
                                   data.description.identity);
  if (!other) {
    return std::nullopt;
  }
  return fmt::format(
      "{}: the ids of {} are of {}, says {}; {}, which the run would resume from, was trained on "
      "ids "
      "of {}: give it data of that tokenizer, or give training.output_dir another folder; {}",
      data.key, data.prefix, describe(data.description.identity), data.description.file.string(),
      from.path.string(), describe(*other), kNevertheless);
}

std::optional<std::string> conflict_with_start(const DescribedData& data, const Config& config) {
  fs::path folder;
  std::optional<TokenizerIdentity> record;
  try {
    const RecognisedCheckpoint found = recognise_format(config.initial_weights);
    folder = found.path;
    if (found.format == CheckpointFormat::kDstrain) {
      record = CheckpointStore::training(folder).tokenizer;
    }
  } catch (const std::runtime_error&) {
    return std::nullopt;  // reading the weights gives a better error
  }
  const auto other =
      contradicting(tokenizers_of_weights(folder, record), data.description.identity);
  if (!other) {
    return std::nullopt;
  }
  const std::string with =
      other->kind == "bytes" ? "bytes" : fmt::format("{}", (folder / other->file).string());
  return fmt::format(
      "model.initial_weights: the weights in {} are of {}; the ids of {} ({}) are of {}, says {}: "
      "prepare the data with the weights' tokenizer (--tokenizer {}); {}",
      folder.string(), describe(*other), data.prefix, data.key, describe(data.description.identity),
      data.description.file.string(), with, kNevertheless);
}

std::optional<DatasetDescription> first_described(const DataConfig& data) {
  for (const DataSource& source : data.train) {
    auto description = description_of_prefix(source.prefix);
    if (description && description->knows_tokenizer()) {
      return description;
    }
  }
  return std::nullopt;
}

/// What made the ids of the run's data, as prepare-data recorded it; or, of prompts, which nothing
/// has prepared, what the config names.
std::optional<DatasetDescription> described_tokenizer(const Config& config) {
  const std::string& asked = config.data.sample.tokenizer;
  if (!config.policy.enabled() || asked.empty()) return first_described(config.data);
  const TokenizerSource source = TokenizerSource::find(asked);
  return DatasetDescription{.file = source.folder() / "dataset.json",
                            .tokenizer = source.name,
                            .identity = source.identity(),
                            .content = {}};
}

/// Where the companions of the weights lie that a run at step 0 starts from.
fs::path companions_of_start(const Config& config) {
  try {
    return config.initial_weights.empty() ? fs::path()
                                          : recognise_format(config.initial_weights).path;
  } catch (const std::runtime_error&) {
    return {};  // removed since, which does not matter to a run that resumes
  }
}

}  // namespace

std::optional<std::string> tokenizer_conflict(const Config& config, const ResumedFrom* from) {
  const std::vector<DescribedData> data = described_data(config.data);
  if (data.empty()) {
    return std::nullopt;
  }
  if (auto conflict = conflict_in_data(data)) {
    return conflict;
  }
  // The start of the run says the most about the origin of a wrong vocabulary.
  if (from != nullptr) {
    if (auto conflict = conflict_with_checkpoint(data.front(), *from)) {
      return conflict;
    }
  } else if (!config.initial_weights.empty()) {
    if (auto conflict = conflict_with_start(data.front(), config)) {
      return conflict;
    }
  }
  return conflict_with_vocabulary(data, config.model);
}

std::optional<TokenizerIdentity> tokenizer_of_data(const DataConfig& data) {
  const auto description = first_described(data);
  return description ? std::optional(description->identity) : std::nullopt;
}

RunTokenizer tokenizer_of_run(const Config& config, const ResumedFrom* from) {
  const std::optional<DatasetDescription> data = described_tokenizer(config);
  RunTokenizer run{.identity = data ? std::optional(data->identity) : std::nullopt,
                   .data = data_contents(config.data),
                   .files = {}};
  std::vector<fs::path> weights;
  if (from != nullptr) {
    weights.push_back(from->path);
    run.identity = run.identity ? run.identity : from->training.tokenizer;
  }
  if (const fs::path start = companions_of_start(config); !start.empty()) {
    weights.push_back(start);
  }
  run.files = companions_of_run(weights, data);
  return run;
}

std::map<std::string, std::string> data_contents(const DataConfig& data) {
  std::map<std::string, std::string> contents;
  for (const auto* sources : {&data.train, &data.validation}) {
    for (const DataSource& source : *sources) {
      const auto description = description_of_prefix(source.prefix);
      if (!description) {
        continue;
      }
      const std::string split = fs::path(source.prefix).stem().string();
      if (const auto found = description->content.find(split);
          found != description->content.end()) {
        contents.emplace(source.prefix, found->second);
      }
    }
  }
  return contents;
}

}  // namespace dstrain
