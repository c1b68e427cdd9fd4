// dstrain's own keys: the data, the length of the run, the checkpoints.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr double kMostSteps = 1e15;

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

/// Of one source, or of a list of `fewest` or more.
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

template <typename Access>
Key sources(const char* path, int fewest, Access access) {
  Key key{.path = path, .kind = KeyKind::kAny};
  key.shape = sources_shape(fewest);
  key.set = [access, path](ConfigDraft& draft, const JsonNode& node) {
    access(draft.config) = read_sources(path, node);
  };
  key.get = [access](const Config& c) { return sources_json(access(c)); };
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

/// "auto" is measured as the run goes, so it stays what it is.
Key replica_check_interval(NumberRange steps) {
  Key key = auto_is_value(field(
      "training.replica_check_interval", steps,
      [](auto& c) -> auto& { return c.training.replica_check_interval; }));
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

}  // namespace

std::vector<Key> run_keys() {
  const auto steps = between(0, kMostSteps);
  return {
      required(sources(
                   "data.train", 1, [](auto& c) -> auto& { return c.data.train; }),
               "write \"data\": {\"train\": \"prefix of a .bin/.idx pair\"}"),
      null_is_default(sources(
          "data.validation", 0, [](auto& c) -> auto& { return c.data.validation; })),
      auto_is_default(field(
          "data.sequence_length", between(1, kMostSteps),
          [](auto& c) -> auto& { return c.data.sequence_length; })),
      required(field(
                   "training.steps", between(1, kMostSteps),
                   [](auto& c) -> auto& { return c.training.steps; }),
               "write how many optimizer steps to do, for example \"training\": {\"steps\": 400}"),
      field(
          "training.seed", at_least(0), [](auto& c) -> auto& { return c.training.seed; }),
      field(
          "training.eval_interval", steps,
          [](auto& c) -> auto& { return c.training.eval_interval; }),
      field(
          "training.eval_batches", between(1, kMostSteps),
          [](auto& c) -> auto& { return c.training.eval_batches; }),
      auto_is_value(choice(
          "training.device",
          std::vector<std::pair<std::string, DeviceChoice>>{{"auto", DeviceChoice::kAuto},
                                                            {"cpu", DeviceChoice::kCpu},
                                                            {"cuda", DeviceChoice::kCuda}},
          [](auto& c) -> auto& { return c.training.device; })),
      null_is_default(auto_is_default(field(
          "training.threads", between(1, 4096),
          [](auto& c) -> auto& { return c.training.threads; }))),
      field(
          "training.tf32", {}, [](auto& c) -> auto& { return c.training.tf32; }),
      auto_is_value(choice(
          "training.attention",
          std::vector<std::pair<std::string, AttentionKernels>>{
              {"own", AttentionKernels::kOwn},
              {"cudnn", AttentionKernels::kCudnn},
              {"auto", AttentionKernels::kFaster}},
          [](auto& c) -> auto& { return c.training.attention; })),
      matmul_algorithms(),
      field(
          "training.cuda_graphs", {}, [](auto& c) -> auto& { return c.training.cuda_graphs; }),
      shaped(field(
                 "training.output_dir", {}, [](auto& c) -> auto& { return c.training.output_dir; }),
             kSomeText),
      null_is_default(auto_is_default(field(
          "training.max_consecutive_skips", between(1, kMostSteps),
          [](auto& c) -> auto& { return c.training.max_consecutive_skips; }))),
      replica_check_interval(steps),
      field(
          "checkpoint.interval", steps, [](auto& c) -> auto& { return c.checkpoint.interval; }),
      field(
          "checkpoint.keep", between(1, kMostSteps),
          [](auto& c) -> auto& { return c.checkpoint.keep; }),
      resume(),
      choice(
          "checkpoint.on_save_failure",
          std::vector<std::pair<std::string, SaveFailure>>{{"stop", SaveFailure::kStop},
                                                           {"continue", SaveFailure::kContinue}},
          [](auto& c) -> auto& { return c.checkpoint.on_save_failure; }),
      field(
          "checkpoint.async", {}, [](auto& c) -> auto& { return c.checkpoint.async; }),
      choice(
          "network.security",
          std::vector<std::pair<std::string, NetworkSecurity>>{
              {"authenticated", NetworkSecurity::kAuthenticated},
              {"encrypted", NetworkSecurity::kEncrypted},
              {"trusted", NetworkSecurity::kTrusted}},
          [](auto& c) -> auto& { return c.network_security; }),
  };
}

}  // namespace dstrain
