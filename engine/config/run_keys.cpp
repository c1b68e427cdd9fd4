// dstrain's own keys: the data, the length of the run, the checkpoints.
#include <limits>

#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kTraining{"training.", &Config::training};
constexpr KeyBlock kData{"data.", &Config::data};
constexpr KeyBlock kSample{"data.", kData.to(&DataConfig::sample)};
constexpr KeyBlock kCheckpoint{"checkpoint.", &Config::checkpoint};
constexpr KeyBlock kCompression{"gradient_compression.", &Config::gradient_compression};

constexpr double kMostSteps = 1e15;
constexpr double kMostTokenId = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void throw_bad_source(const std::string& path, const JsonNode& node) {
  throw_config_error(node.where, path,
                     "must be a path, or a list of paths and {\"path\": …, \"weight\": …}; found " +
                         node.describe());
}

DataSource read_source(const std::string& path, const JsonNode& node) {
  DataSource source;
  if (node.is(JsonNode::Kind::kString)) {
    source.prefix = node.text;
  } else if (node.is(JsonNode::Kind::kObject)) {
    for (const JsonMember& member : node.members) {
      const JsonNode& value = member.value;
      if (member.key == "path" && value.is(JsonNode::Kind::kString)) {
        source.prefix = value.text;
      } else if (member.key == "weight" && value.is(JsonNode::Kind::kNumber) && value.number > 0) {
        source.weight = value.number;
      } else if (member.key == "weight") {
        throw_config_error(value.where, path + ".weight",
                           "must be a number greater than 0, found " + value.describe());
      } else if (member.key == "path") {
        throw_config_error(value.where, path + ".path",
                           "must be a string, found " + value.describe());
      } else {
        throw_config_error(member.where, path + "." + member.key,
                           "unknown key; a source has \"path\" and \"weight\"");
      }
    }
  } else {
    throw_bad_source(path, node);
  }
  if (source.prefix.empty()) throw_config_error(node.where, path, "the path is empty");
  return source;
}

std::vector<DataSource> read_sources(const std::string& path, const JsonNode& node) {
  if (node.is(JsonNode::Kind::kString)) return {read_source(path, node)};
  if (!node.is(JsonNode::Kind::kArray)) throw_bad_source(path, node);
  std::vector<DataSource> sources;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    sources.push_back(read_source(fmt::format("{}.{}", path, i), node.items[i]));
  }
  return sources;
}

std::string sources_json(const std::vector<DataSource>& sources) {
  if (sources.empty()) return "";
  if (sources.size() == 1 && sources.front().weight == 1.0) {
    return json_quote(sources.front().prefix);
  }
  std::string list;
  for (const DataSource& source : sources) {
    list += fmt::format("{}{{\"path\": {}, \"weight\": {}}}", list.empty() ? "" : ", ",
                        json_quote(source.prefix), source.weight);
  }
  return "[" + list + "]";
}

/// The shape of one source, or of a list of `fewest` or more.
std::string sources_shape(int fewest) {
  const std::string path = R"({"type": "string", "minLength": 1})";
  const std::string weighted =
      R"({"type": "object", "required": ["path"], "additionalProperties": false, "properties":
          {"path": )" +
      path + R"(, "weight": {"type": "number", "exclusiveMinimum": 0}}})";
  return fmt::format(
      R"({{"anyOf": [{0}, {{"type": "array", "minItems": {2}, "items": {{"anyOf": [{0}, {1}]}}}}]}})",
      path, weighted, fewest);
}

Key sources(const char* path, int fewest, std::vector<DataSource> DataConfig::*member) {
  Key key{.path = path, .kind = KeyKind::kAny};
  key.shape = sources_shape(fewest);
  key.set = [member, path](ConfigDraft& draft, const JsonNode& node) {
    draft.config.data.*member = read_sources(path, node);
  };
  key.get = [member](const Config& c) { return sources_json(c.data.*member); };
  return key;
}

Key resume() {
  Key key{.path = "checkpoint.resume", .kind = KeyKind::kString, .auto_rule = AutoRule::kValue};
  key.shape = kSomeText;
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    CheckpointConfig& checkpoint = draft.config.checkpoint;
    if (node.text.empty()) {
      throw_config_error(node.where, "checkpoint.resume",
                         "must be \"auto\", \"never\" or a checkpoint's path, found \"\"");
    }
    checkpoint.resume = node.text == "auto"    ? ResumeMode::kAuto
                        : node.text == "never" ? ResumeMode::kNever
                                               : ResumeMode::kPath;
    checkpoint.resume_path = checkpoint.resume == ResumeMode::kPath ? node.text : "";
  };
  key.get = [](const Config& c) -> std::string {
    switch (c.checkpoint.resume) {
      case ResumeMode::kAuto:
        return "\"auto\"";
      case ResumeMode::kNever:
        return "\"never\"";
      case ResumeMode::kPath:
        break;
    }
    return json_quote(c.checkpoint.resume_path);
  };
  return key;
}

KeyCondition compresses(CompressionKind one, CompressionKind other) {
  return [=](const Config& c) {
    return c.gradient_compression.kind == one || c.gradient_compression.kind == other;
  };
}

/// The key of Megatron-LM and NeMo, a list of three.
Key rampup_batch_size() {
  Key key{.path = "rampup_batch_size", .kind = KeyKind::kAny};
  key.aliases = {"rampup-batch-size", "training.rampup_batch_size"};
  key.note =
      "[start, increment, samples]: the first step has `start` sequences, and by the time of "
      "`samples` sequences the batch has grown to train_batch_size, by `increment` at a time";
  key.shape = R"({"type": "array", "minItems": 3, "maxItems": 3,
                  "items": {"type": "integer", "minimum": 1, "maximum": 1e15}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    const auto numbers = positive_integers(node, kMostSteps);
    if (!numbers || numbers->size() != 3) {
      throw_config_error(node.where, "rampup_batch_size",
                         "must be three positive integers, [start, increment, samples], such as "
                         "[16, 8, 5859375]; found " +
                             node.dump());
    }
    draft.config.rampup_batch_size = {
        .start = (*numbers)[0], .increment = (*numbers)[1], .samples = (*numbers)[2]};
  };
  key.get = [](const Config& c) -> std::string {
    const auto& ramp = c.rampup_batch_size;
    return ramp ? fmt::format("[{}, {}, {}]", ramp->start, ramp->increment, ramp->samples) : "";
  };
  return null_is_default(key);
}

/// Patterns of the names of tensors that are not trained.
Key freeze() {
  Key key{.path = "training.freeze", .kind = KeyKind::kAny, .null_is_absent = true};
  key.shape = R"({"type": "array", "items": {"type": "string", "minLength": 1}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    const auto refuse = [&](const JsonNode& found) {
      throw_config_error(found.where, "training.freeze",
                         "must be a list of patterns of tensors' names, such as "
                         "[\"embedding.*\", \"blocks.[0-3].*\"]; found " +
                             found.describe());
    };
    if (!node.is(JsonNode::Kind::kArray)) refuse(node);
    for (const JsonNode& item : node.items) {
      if (!item.is(JsonNode::Kind::kString) || item.text.empty()) refuse(item);
      draft.config.training.freeze.patterns.push_back(item.text);
    }
  };
  key.get = [](const Config& c) -> std::string {
    std::string list;
    for (const std::string& pattern : c.training.freeze.patterns) {
      list += (list.empty() ? "" : ", ") + json_quote(pattern);
    }
    return list.empty() ? list : "[" + list + "]";
  };
  return key;
}

Key eval_prompts() {
  Key key{.path = "training.eval_prompts", .kind = KeyKind::kAny, .null_is_absent = true};
  key.shape = R"({"type": "array", "items": {"type": "string", "minLength": 1}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    const auto refuse = [&](const JsonNode& found) {
      throw_config_error(found.where, "training.eval_prompts",
                         "must be a list of texts that the model continues, such as [\"Once upon a "
                         "time\"]; found " +
                             found.describe());
    };
    if (!node.is(JsonNode::Kind::kArray)) refuse(node);
    for (const JsonNode& item : node.items) {
      if (!item.is(JsonNode::Kind::kString) || item.text.empty()) refuse(item);
      draft.config.training.eval_prompts.push_back(item.text);
    }
  };
  key.get = [](const Config& c) -> std::string {
    std::string list;
    for (const std::string& prompt : c.training.eval_prompts) {
      list += (list.empty() ? "" : ", ") + json_quote(prompt);
    }
    return list.empty() ? list : "[" + list + "]";
  };
  return key;
}

Key eval_tokens() {
  Key key = null_is_default(
      kTraining.field("eval_tokens", between(1, kMostSteps), &TrainingConfig::eval_tokens));
  key.get = [get = std::move(key.get)](const Config& config) {
    return config.training.eval_prompts.empty() ? std::string() : get(config);
  };
  return key;
}

/// "auto" is measured during the run, so it is not resolved here.
Key replica_check_interval(NumberRange steps) {
  Key key = auto_is_value(
      kTraining.field("replica_check_interval", steps, &TrainingConfig::replica_check_interval));
  key.set = [set_number = key.set](ConfigDraft& draft, const JsonNode& node) {
    if (node.is_text("auto")) {
      draft.config.training.replica_check_interval = std::nullopt;
    } else {
      set_number(draft, node);
    }
  };
  key.get = [get_number = key.get](const Config& c) {
    return c.training.replica_check_interval ? get_number(c) : "\"auto\"";
  };
  return null_is_default(key);
}

Key matmul_algorithms() {
  Key key{.path = "training.matmul_algorithms",
          .kind = KeyKind::kString,
          .auto_rule = AutoRule::kValue};
  key.shape = kSomeText;
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (node.text.empty()) {
      throw_config_error(node.where, "training.matmul_algorithms",
                         "must be \"auto\", \"untimed\" or a file's path, found \"\"");
    }
    draft.config.training.matmul_algorithms = node.text;
  };
  key.get = [](const Config& c) { return json_quote(c.training.matmul_algorithms); };
  return key;
}

Key trace_spans(const std::string& name, std::vector<NumberSpan> TraceConfig::*member) {
  Key key{.path = "training.trace." + name, .kind = KeyKind::kAny};
  const bool of_steps = member == &TraceConfig::steps;
  key.shape = of_steps
                  ? R"({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9223372036854775807},
      {"type": "string", "pattern": "^[1-9][0-9]*(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$"}]})"
                  : R"({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9223372036854775807},
      {"type": "string", "pattern": "^(all|[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)$"}]})";
  key.set = [member, of_steps, path = key.path](ConfigDraft& draft, const JsonNode& node) {
    std::vector<NumberSpan>& spans = draft.config.training.trace.*member;
    if (!of_steps && node.is_text("all")) {
      spans.clear();
      return;
    }
    std::optional<std::vector<NumberSpan>> read;
    if (node.is(JsonNode::Kind::kString)) read = parse_spans(node.text);
    if (node.integer && *node.integer >= 0) read = {{*node.integer, *node.integer}};
    if (!read) {
      throw_config_error(
          node.where, path,
          fmt::format("must be {}, ascending; found {}",
                      of_steps ? "numbers of steps such as \"20-24\" or \"20-24,1000\""
                               : "\"all\", or numbers of ranks such as \"0,8-15\"",
                      node.describe()));
    }
    for (const NumberSpan& span : *read) {
      if (of_steps && span.first == 0) {
        throw_config_error(node.where, path, "begins with step 0, and the first step is 1");
      }
      if (of_steps && span.last - span.first >= TraceConfig::kMostSteps) {
        throw_config_error(
            node.where, path,
            fmt::format("{} are {} steps in a row, and a trace has at most {}", to_text({span}),
                        span.last - span.first + 1, TraceConfig::kMostSteps));
      }
    }
    spans = *read;
  };
  key.get = [member, of_steps](const Config& c) -> std::string {
    const std::vector<NumberSpan>& spans = c.training.trace.*member;
    if (!spans.empty()) return json_quote(to_text(spans));
    return of_steps ? "" : json_quote("all");
  };
  key.note = of_steps
                 ? "the steps of which <output_dir>/traces gets a timeline of all that ranks do"
                 : "the ranks that training.trace.steps is about";
  return null_is_default(key);
}

}  // namespace

std::vector<Key> run_keys() {
  const auto steps = between(0, kMostSteps);
  return {
      required(sources("data.train", 1, &DataConfig::train),
               "write \"data\": {\"train\": \"prefix of a .bin/.idx pair\"}"),
      null_is_default(sources("data.validation", 0, &DataConfig::validation)),
      auto_is_default(
          kData.field("sequence_length", between(1, kMostSteps), &DataConfig::sequence_length)),
      also_called(kData.field("document_attention", {}, &DataConfig::document_attention),
                  {"data.reset_attention_mask"}),
      no_effect("data.reset_position_ids", KeyKind::kBool,
                "positions restart with each document where data.document_attention is on"),
      also_called(kData.field("mask_document_ends", {}, &DataConfig::mask_document_ends),
                  {"data.eod_mask_loss"}),
      null_is_default(auto_is_default(
          kData.field("end_of_document", between(0, kMostTokenId), &DataConfig::end_of_document))),
      kData.choice("pack", {{"none", DocumentPack::kNone}, {"best_fit", DocumentPack::kBestFit}},
                   &DataConfig::pack),
      auto_is_default(kData.field("samples", {}, &DataConfig::samples)),
      kData.choice("long_samples", {{"cut", LongSamples::kCut}, {"drop", LongSamples::kDrop}},
                   &DataConfig::long_samples),
      null_is_default(kSample.field("tokenizer", {}, &SampleConfig::tokenizer)),
      null_is_default(kSample.field("chat_template", {}, &SampleConfig::chat_template)),
      kSample.choice("train_on",
                     {{"assistant", TrainOn::kAssistant},
                      {"last_turn", TrainOn::kLastTurn},
                      {"all", TrainOn::kAll}},
                     &SampleConfig::train_on),
      kSample.choice("answers_begin",
                     {{"prompt", AnswersBegin::kPrompt}, {"question", AnswersBegin::kQuestion}},
                     &SampleConfig::answers_begin),
      null_is_default(kSample.field("stop_token", {}, &SampleConfig::stop_token)),
      kData.choice("weights_by",
                   {{"samples", WeightUnit::kSamples}, {"tokens", WeightUnit::kTokens}},
                   &DataConfig::weights_by),
      required(kTraining.field("steps", between(1, kMostSteps), &TrainingConfig::steps),
               "write how many optimizer steps to do, for example \"training\": {\"steps\": 400}"),
      rampup_batch_size(),
      kTraining.field("seed", at_least(0), &TrainingConfig::seed),
      kTraining.field("eval_interval", steps, &TrainingConfig::eval_interval),
      kTraining.field("eval_batches", between(1, kMostSteps), &TrainingConfig::eval_batches),
      eval_prompts(),
      eval_tokens(),
      auto_is_value(kTraining.choice("device",
                                     {{"auto", DeviceChoice::kAuto},
                                      {"cpu", DeviceChoice::kCpu},
                                      {"cuda", DeviceChoice::kCuda}},
                                     &TrainingConfig::device)),
      null_is_default(
          auto_is_default(kTraining.field("threads", between(1, 4096), &TrainingConfig::threads))),
      kTraining.field("tf32", {}, &TrainingConfig::tf32),
      auto_is_value(kTraining.choice("attention",
                                     {{"own", AttentionKernels::kOwn},
                                      {"cudnn", AttentionKernels::kCudnn},
                                      {"auto", AttentionKernels::kFaster}},
                                     &TrainingConfig::attention)),
      matmul_algorithms(),
      kTraining.choice(
          "block_order",
          {{"horizontal", BlockOrder::kHorizontal}, {"vertical", BlockOrder::kVertical}},
          &TrainingConfig::block_order),
      null_is_default(auto_is_default(
          kTraining.field("loss_tile_tokens", at_least(1), &TrainingConfig::loss_tile_tokens))),
      null_is_default(
          kTraining.field("mlp_tile_tokens", at_least(1), &TrainingConfig::mlp_tile_tokens)),
      freeze(),
      null_is_default(
          kTraining.field("neftune_noise_alpha", at_least(0), &TrainingConfig::noise_alpha)),
      kTraining.field("cuda_graphs", {}, &TrainingConfig::cuda_graphs),
      also_called(null_is_default(kTraining.field("expert_capacity_factor", above(0),
                                                  &TrainingConfig::expert_capacity_factor)),
                  {"moe_expert_capacity_factor"}),
      shaped(kTraining.field("output_dir", {}, &TrainingConfig::output_dir), kSomeText),
      null_is_default(
          auto_is_default(kTraining.field("max_consecutive_skips", between(1, kMostSteps),
                                          &TrainingConfig::max_consecutive_skips))),
      replica_check_interval(steps),
      trace_spans("steps", &TraceConfig::steps),
      trace_spans("ranks", &TraceConfig::ranks),
      kCheckpoint.field("interval", steps, &CheckpointConfig::interval),
      kCheckpoint.field("keep", between(1, kMostSteps), &CheckpointConfig::keep),
      resume(),
      kCheckpoint.choice("on_save_failure",
                         {{"stop", SaveFailure::kStop}, {"continue", SaveFailure::kContinue}},
                         &CheckpointConfig::on_save_failure),
      kCheckpoint.field("async", {}, &CheckpointConfig::async),
      choice("network.security",
             {{"authenticated", NetworkSecurity::kAuthenticated},
              {"encrypted", NetworkSecurity::kEncrypted},
              {"trusted", NetworkSecurity::kTrusted}},
             &Config::network_security),
      kCompression.choice("kind",
                          {{"none", CompressionKind::kNone},
                           {"powersgd", CompressionKind::kPowerSgd},
                           {"top_k", CompressionKind::kTopK}},
                          &CompressionConfig::kind),
      only_for(kCompression.field("start_step", steps, &CompressionConfig::start_step),
               "kind \"powersgd\" and \"top_k\"",
               compresses(CompressionKind::kPowerSgd, CompressionKind::kTopK)),
      only_for(kCompression.field("rank", between(1, 64), &CompressionConfig::rank),
               "kind \"powersgd\"",
               compresses(CompressionKind::kPowerSgd, CompressionKind::kPowerSgd)),
      only_for(kCompression.field("density", {.low = 0, .high = 1, .low_open = true},
                                  &CompressionConfig::density),
               "kind \"top_k\"", compresses(CompressionKind::kTopK, CompressionKind::kTopK)),
  };
}

}  // namespace dstrain
