#include "engine/data/resume_record.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/base/regular_file.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

Json to_json(const DocumentSink::Kept::OfSplit& split) {
  return {{"tokens", split.tokens},
          {"open_tokens", split.open_tokens},
          {"content", split.content},
          {"open_content", split.open_content},
          {"text_bytes", split.text_bytes}};
}

DocumentSink::Kept::OfSplit split_from(const Json& json) {
  return {.tokens = json.at("tokens").get<std::int64_t>(),
          .open_tokens = json.at("open_tokens").get<std::int64_t>(),
          .content = json.at("content").get<std::string>(),
          .open_content = json.at("open_content").get<std::string>(),
          .text_bytes = json.at("text_bytes").get<std::int64_t>()};
}

ResumeRecord record_from(const Json& json) {
  ResumeRecord record;
  for (const auto& [flag, value] : json.at("settings").items()) {
    record.settings[flag] = value.get<std::string>();
  }
  record.files = json.at("files").get<std::string>();
  record.position = {json.at("file").get<std::size_t>(), json.at("byte").get<std::int64_t>()};
  record.lines = json.at("lines").get<std::int64_t>();
  record.is_inside_document = json.at("is_inside_document").get<bool>();
  record.is_publishing = json.at("is_publishing").get<bool>();
  record.bytes_done = json.at("bytes_done").get<std::int64_t>();
  record.kept = {.splits = {split_from(json.at("train")), split_from(json.at("validation"))},
                 .documents = json.at("documents").get<std::int64_t>(),
                 .journal = json.at("journal").get<std::string>()};
  const Json& counts = json.at("counts");
  record.counts.duplicates = counts.at("duplicates").get<std::int64_t>();
  record.counts.binary = counts.at("binary").get<std::int64_t>();
  record.counts.empty = counts.at("empty").get<std::int64_t>();
  record.counts.bad_lines = counts.at("bad_lines").get<std::int64_t>();
  record.counts.bad_lines_named = counts.at("bad_lines_named").get<std::vector<std::string>>();
  record.counts.unreadable = counts.at("unreadable").get<std::vector<std::string>>();
  record.counts.seconds = counts.at("seconds").get<double>();
  return record;
}

}  // namespace

std::string resume_record_path(const std::string& folder) {
  return folder + "/prepare.resume";
}

std::optional<ResumeRecord> read_resume_record(const std::string& folder) {
  const std::string path = resume_record_path(folder);
  const FileText file = read_regular_file(path);
  if (file.is_missing) {
    return std::nullopt;
  }
  try {
    const Json json = Json::parse(file.text);
    if (json.at("version") == kVersion) {
      return record_from(json);
    }
  } catch (const nlohmann::json::exception&) {  // reported below, like another version
  }
  throw ConfigError(fmt::format(
      "--output {}: {}, the record of an interrupted prepare-data, {}; --overwrite starts over",
      folder, path, file.why.empty() ? "is not one that this version writes" : file.why));
}

void write_resume_record(const ResumeRecord& record, const std::string& folder) {
  Json settings = Json::object();
  for (const auto& [flag, value] : record.settings) {
    settings[flag] = value;
  }
  const PrepareSummary& counts = record.counts;
  const Json json = {{"version", kVersion},
                     {"settings", settings},
                     {"files", record.files},
                     {"file", record.position.file},
                     {"byte", record.position.byte},
                     {"lines", record.lines},
                     {"is_inside_document", record.is_inside_document},
                     {"bytes_done", record.bytes_done},
                     {"is_publishing", record.is_publishing},
                     {"train", to_json(record.kept.splits[0])},
                     {"validation", to_json(record.kept.splits[1])},
                     {"documents", record.kept.documents},
                     {"journal", record.kept.journal},
                     {"counts",
                      {{"duplicates", counts.duplicates},
                       {"binary", counts.binary},
                       {"empty", counts.empty},
                       {"bad_lines", counts.bad_lines},
                       {"bad_lines_named", counts.bad_lines_named},
                       {"unreadable", counts.unreadable},
                       {"seconds", counts.seconds}}}};
  OutputFile file(resume_record_path(folder));
  file.append(json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  file.sync();
  file.publish();
  sync_folder(folder);
}

void remove_resume_record(const std::string& folder) {
  ::unlink(resume_record_path(folder).c_str());
  sync_folder(folder);
}

void take_back_names(const std::string& folder) {
  const auto record = read_resume_record(folder);
  if (!record || !record->is_publishing) {
    return;
  }
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (const char* name : {"train.bin", "validation.bin", "tokenizer.model"}) {
    const std::string path = folder + "/" + name;
    if (!fs::exists(partial_path(path), ignored)) {
      fs::rename(path, partial_path(path), ignored);
    }
  }
  for (const char* name :
       {"train.bin", "train.idx", "train.hashes", "validation.bin", "validation.idx",
        "validation.hashes", "dataset.json", "tokenizer.json", "tokenizer_config.json"}) {
    fs::remove(folder + "/" + name, ignored);
  }
}

void check_same_settings(const ResumeRecord& record,
                         const std::map<std::string, std::string>& now,
                         const std::string& folder) {
  const auto refuse = [&](const std::string& difference) {
    throw ConfigError(fmt::format(
        "--output {}: holds what an interrupted prepare-data with other settings left ({}); start "
        "that one again to resume it, or give --overwrite to start over",
        folder, difference));
  };
  for (const auto& [flag, value] : now) {
    const auto then = record.settings.find(flag);
    if (then == record.settings.end() || then->second != value) {
      refuse(fmt::format("{}: {} there, {} now", flag,
                         then == record.settings.end() ? "nothing" : then->second, value));
    }
  }
}

}  // namespace dstrain
