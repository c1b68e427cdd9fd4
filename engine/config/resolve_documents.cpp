// Completes how a run treats the documents in its data: which token ends one, and which kernels can
// keep attention within one. Also checks dropout.
#include <fmt/format.h>

#include "engine/config/arch/architecture.h"
#include "engine/config/dataset_description.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kEnd = "data.end_of_document";

/// Takes the token from the descriptions beside the token files, which must agree. Those that name
/// none are not held against the others.
void find_document_end(LoadedConfig& loaded, Origins& origins) {
  DataConfig& data = loaded.config.data;
  for (const auto* sources : {&data.train, &data.validation}) {
    for (const DataSource& source : *sources) {
      const auto description = description_of_prefix(source.prefix);
      if (!description || !description->identity.document_end) {
        continue;
      }
      const std::int32_t end = *description->identity.document_end;
      const std::string file = description->file.string();
      if (data.end_of_document && *data.end_of_document != end) {
        throw_config_error("", kEnd,
                           fmt::format("documents end with token {} ({}), and with {} by {}: "
                                       "prepare the data again with one of them",
                                       *data.end_of_document, origins[kEnd], end, file));
      }
      data.end_of_document = end;
      origins[kEnd] = fmt::format("derived: append_eod of {}", file);
    }
  }
}

/// If cuDNN's kernels were asked for by name, they must not be replaced silently.
void check_attention_kernels(const Config& config, Origins& origins) {
  if (config.training.attention != AttentionKernels::kCudnn) {
    return;
  }
  const std::int64_t sequence = config.data.sequence_length;
  bool has_window = false;
  for (std::int64_t layer = 0; layer < config.model.num_layers; ++layer) {
    const std::int64_t window = config.model.window_of_layer(layer);
    has_window = has_window || (window > 0 && window < sequence);
  }
  const bool drops = config.dropout.attention > 0.0F;
  if (config.data.document_attention || has_window || drops) {
    throw_config_error(
        origins["training.attention"], "training.attention",
        fmt::format("cuDNN's kernels are used where causality alone hides tokens, but here {} does "
                    "too: write \"own\" or \"auto\"",
                    config.data.document_attention ? "data.document_attention"
                    : has_window                   ? "the model's window"
                                                   : "dropout"));
  }
  const ModelSpec& model = config.model;
  const bool is_alibi = model.position == PositionKind::kAlibi;
  if (is_alibi || model.attention_cap > 0.0F ||
      Architecture(model).layers.front().attention.scale > 0.0F) {
    throw_config_error(
        origins["training.attention"], "training.attention",
        fmt::format("cuDNN's kernels have {}, and the model has: write \"own\" or \"auto\"",
                    is_alibi ? "no scores that fall with distance"
                             : "no cap of scores, nor another scale than the head's"));
  }
}

/// Takes from the descriptions beside the token files whether they hold samples of fine-tuning
/// data, which all or none must. Samples are packed, and do not see each other, unless the config
/// says otherwise.
void find_samples(LoadedConfig& loaded, Origins& origins) {
  DataConfig& data = loaded.config.data;
  const auto is_open = [&](const char* key) {
    const auto origin = origins.find(key);
    return origin == origins.end() || origin->second.starts_with("default");
  };
  bool has_json_lines = false;
  for (const auto* sources : {&data.train, &data.validation}) {
    for (const DataSource& source : *sources) {
      const bool is_json_lines = names_json_lines(source.prefix);
      if (is_json_lines && loaded.config.policy.enabled()) {  // of prompts
        has_json_lines = true;
        continue;
      }
      const auto description = is_json_lines ? std::nullopt : description_of_prefix(source.prefix);
      if (!description && !is_json_lines) continue;
      const bool has_samples = is_json_lines || !description->samples.empty();
      const std::string by = is_json_lines ? "its name" : description->file.string();
      const std::string kind = is_json_lines                  ? "JSON lines"
                               : description->samples.empty() ? "no samples"
                                                              : description->samples;
      has_json_lines = has_json_lines || is_json_lines;
      const bool is_first = is_open("data.samples");
      if (!is_first && has_samples != data.samples) {
        throw_config_error(
            "", "data.samples",
            fmt::format("{} ({}), and {} holds {}, as {} says: a run trains on samples "
                        "of fine-tuning data, or on plain text",
                        data.samples, origins["data.samples"], source.prefix, kind, by));
      }
      if (is_first && has_samples) {
        data.samples = true;
        origins["data.samples"] = is_json_lines
                                      ? fmt::format("derived: {} holds JSON lines", source.prefix)
                                      : fmt::format("derived: {}", by);
      }
    }
  }
  if (data.sample != SampleConfig{} && !has_json_lines) {
    for (const char* const key : {"data.tokenizer", "data.chat_template", "data.train_on",
                                  "data.answers_begin", "data.stop_token"}) {
      const std::string_view name = key;
      const bool is_of_prompts =
          name == "data.tokenizer" || name == "data.chat_template" || name == "data.stop_token";
      if (is_open(key) || (is_of_prompts && !loaded.config.training.eval_prompts.empty())) continue;
      throw_config_error(origins[key], key,
                         "is about JSON lines, of which there are none: in token files it was "
                         "decided by prepare-data, which has a flag for it",
                         {{ConfigEdit::Kind::kRemove, key, ""}});
    }
  }
  if (!data.samples) return;
  if (loaded.config.curriculum.enabled) {
    throw_config_error("", "data.samples",
                       "curriculum_learning with samples: a step of shorter sequences takes their "
                       "first tokens, and would cut the answers off: leave the curriculum out");
  }
  const bool are_pairs = loaded.config.preferences.enabled();
  if (is_open("data.pack")) {
    data.pack = are_pairs ? DocumentPack::kNone : DocumentPack::kBestFit;
    origins["data.pack"] = are_pairs ? "derived: a pair a sequence" : "derived: samples are packed";
  }
  if (is_open("data.document_attention")) {
    data.document_attention = are_pairs || data.pack != DocumentPack::kNone;
    origins["data.document_attention"] = "derived: samples do not see each other";
  }
}

void check_packing(const DataConfig& data, Origins& origins) {
  if (data.pack != DocumentPack::kNone && data.sequence_length > kLongestPackedSequence) {
    throw_config_error(origins["data.sequence_length"], "data.sequence_length",
                       fmt::format("{}, of which data.pack fills up to {}: expected no more, or "
                                   "data.pack \"none\"",
                                   data.sequence_length, kLongestPackedSequence));
  }
}

/// Parallel branches are summed over ranks together, before dropout could be applied to either.
void check_dropout(const Config& config) {
  if (config.model.parallel_branches && config.dropout.residual > 0.0F) {
    throw_config_error("", "model.hidden_dropout",
                       "dropout of branches that stand side by side is not in this version: write "
                       "0, or \"use_parallel_residual\": false");
  }
}

}  // namespace

void resolve_documents(LoadedConfig& loaded, Origins& origins) {
  check_dropout(loaded.config);
  DataConfig& data = loaded.config.data;
  find_samples(loaded, origins);
  check_attention_kernels(loaded.config, origins);
  check_packing(data, origins);
  if (data.samples || (!data.document_attention && !data.mask_document_ends)) {
    return;
  }
  if (!data.end_of_document) {
    find_document_end(loaded, origins);
  }
  const std::int64_t vocabulary = loaded.config.model.vocab_size;
  if (data.end_of_document && *data.end_of_document >= vocabulary) {
    throw_config_error(origins[kEnd], kEnd,
                       fmt::format("token {} is outside the model's vocabulary of {}",
                                   *data.end_of_document, vocabulary));
  }
}

}  // namespace dstrain
