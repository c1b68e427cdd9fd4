#include "engine/train/run_data.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "engine/base/amount_text.h"
#include "engine/base/file_descriptor.h"
#include "engine/chat/chat_template.h"
#include "engine/config/config_error.h"
#include "engine/config/dataset_description.h"
#include "engine/config/tokenizer_identity.h"
#include "engine/data/prepare_data.h"
#include "engine/tokenizer/tokenizer_source.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Held by whoever makes samples in a folder; the others wait.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    const std::string path = (folder / "lock").string();
    file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    int result = 0;
    do {
      result = file_.get() < 0 ? -1 : ::flock(file_.get(), LOCK_EX);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
      throw ConfigError(
          fmt::format("{}: samples of JSON lines are made there, and it cannot be locked: {}", path,
                      std::strerror(errno)));
    }
  }

 private:
  FileDescriptor file_;
};

std::string named_tokenizer(const DataConfig& data, const std::string& model_folder) {
  if (!data.sample.tokenizer.empty()) {
    return data.sample.tokenizer;
  }
  if (!model_folder.empty() && TokenizerSource::is_in(model_folder)) {
    return model_folder;
  }
  throw ConfigError(
      "data.tokenizer: JSON lines need a tokenizer, and the model is no folder that holds one: "
      "name its folder or file");
}

/// A name for what these settings make of the file as it is now.
std::string key_of(const std::string& source,
                   const DataConfig& data,
                   const TokenizerSource& tokenizer) {
  struct stat facts {};
  if (::stat(source.c_str(), &facts) != 0) {
    throw ConfigError(fmt::format("{}: {}", source, std::strerror(errno)));
  }
  const fs::path folder = tokenizer.folder();
  std::string text = fmt::format(
      "{}\n{} {} {}\n{}\n{} {} {}\n{}", fs::absolute(source).string(), facts.st_size,
      facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec, describe(tokenizer.identity()),
      static_cast<int>(data.sample.train_on), static_cast<int>(data.sample.answers_begin),
      data.sample.stop_token, fmt::join(stop_ids_of(folder), " "));
  const fs::path chat =
      data.sample.chat_template.empty() ? folder : fs::path(data.sample.chat_template);
  if (!data.sample.chat_template.empty() || ChatTemplate::is_in(chat)) {
    text += ChatTemplate::find(chat, folder).source();
  }
  return content_hash(text).substr(0, 16);
}

class Samples {
 public:
  Samples(const DataConfig& data,
          const std::string& model_folder,
          const fs::path& folder,
          const std::function<bool()>& stop_requested)
      : data_(data),
        folder_(folder),
        stop_requested_(stop_requested),
        name_(named_tokenizer(data, model_folder)),
        tokenizer_(TokenizerSource::find(name_)),
        lock_(folder) {}

  /// The prefix of the source's samples.
  std::string prepared(const std::string& source) {
    const std::string stem = fs::path(source).stem().string();
    const fs::path made = folder_ / fmt::format("{}-{}", stem, key_of(source, data_, tokenizer_));
    std::error_code ignored;
    if (!fs::exists(made / "dataset.json", ignored)) {
      make(source, made.string());
    }
    return (made / "train").string();
  }

 private:
  void make(const std::string& source, const std::string& output) {
    PrepareOptions options;
    options.input = {source};
    options.output = output;
    options.tokenizer = name_;
    options.validation = 0.0;
    options.deduplicate = false;
    options.overwrite = true;
    options.chat = true;
    options.chat_template = data_.sample.chat_template;
    options.samples = {.train_on = data_.sample.train_on,
                       .answers_begin = data_.sample.answers_begin};
    if (!data_.sample.stop_token.empty()) {
      options.stop_tokens = {data_.sample.stop_token};
    }
    const auto summary = prepare_data(
        options, {.on_progress = [](const PrepareProgress&) {}, .stop_requested = stop_requested_});
    if (summary) {
      spdlog::info("{}: {} of {} became {}, {} trained tokens of {}, in {:.1f} s", source,
                   counted(summary->samples.lines, "line"), summary->samples.kind,
                   counted(summary->train.documents, "sample"),
                   grouped(summary->samples.trained_tokens), grouped(summary->train.tokens),
                   summary->seconds);
    }
  }

  const DataConfig& data_;
  fs::path folder_;
  const std::function<bool()>& stop_requested_;
  std::string name_;
  TokenizerSource tokenizer_;
  FolderLock lock_;
};

}  // namespace

DataConfig with_prepared_samples(const DataConfig& data,
                                 const std::string& model_folder,
                                 const fs::path& folder,
                                 const std::function<bool()>& stop_requested) {
  DataConfig prepared = data;
  std::optional<Samples> samples;
  for (auto* sources : {&prepared.train, &prepared.validation}) {
    for (DataSource& source : *sources) {
      if (!names_json_lines(source.prefix)) continue;
      if (!samples) {
        samples.emplace(data, model_folder, folder, stop_requested);
      }
      source.prefix = samples->prepared(source.prefix);
    }
  }
  return prepared;
}

DataConfig with_prepared_samples(const Config& config,
                                 const std::function<bool()>& stop_requested) {
  if (config.policy.enabled()) return config.data;  // prompts are read as they are
  return with_prepared_samples(config.data, config.initial_weights,
                               fs::path(config.training.output_dir) / "data", stop_requested);
}

}  // namespace dstrain
