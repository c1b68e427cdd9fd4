#include "engine/data/prepare_data.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "engine/base/usable_cores.h"
#include "engine/base/write_failure.h"
#include "engine/config/config_error.h"
#include "engine/data/disk_error.h"
#include "engine/data/duplicate_finder.h"
#include "engine/data/encoding_pipeline.h"
#include "engine/data/input_files.h"
#include "engine/data/megatron_writer.h"
#include "engine/data/not_text.h"
#include "engine/data/output_file.h"
#include "engine/data/sentencepiece_training.h"
#include "engine/data/split_files.h"
#include "engine/data/text_reader.h"
#include "engine/data/tokenizer.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Then = EncodingPipeline::Then;

/// The folder the output goes to. One that was made for it is gone again if nothing came of it.
class OutputFolder {
 public:
  explicit OutputFolder(const std::string& path) : path_(path) {
    std::error_code error;
    made_here_ = fs::create_directories(path, error);
    if (error || !fs::is_directory(path)) {
      throw DiskError(
          describe_write_failure("create the folder", path, error ? error.value() : ENOTDIR));
    }
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder() {
    std::error_code ignored;
    if (made_here_) {
      fs::remove(path_, ignored);  // does nothing to a folder that holds something
    }
  }
  [[nodiscard]] std::string operator/(const char* name) const {
    return (fs::path(path_) / name).string();
  }

 private:
  std::string path_;
  bool made_here_ = false;
};

constexpr const char* kOutputNames[] = {"train.bin",      "train.idx",      "train.hashes",
                                        "validation.bin", "validation.idx", "validation.hashes",
                                        "dataset.json",   "tokenizer.model"};

void check_options(const PrepareOptions& options) {
  if (options.input.empty()) {
    throw ConfigError("--input: nothing is named; expected files or folders of text");
  }
  if (!(options.validation >= 0.0 && options.validation < 1.0)) {
    throw ConfigError(fmt::format("--validation {}: expected a share in [0, 1), such as 0.05",
                                  options.validation));
  }
  if (options.append_eod && *options.append_eod < 0) {
    throw ConfigError(
        fmt::format("--append-eod {}: expected a token id, 0 or more", *options.append_eod));
  }
  for (const char* name : kOutputNames) {
    const std::string path = (fs::path(options.output) / name).string();
    std::error_code ignored;
    if (!options.overwrite && fs::exists(path, ignored)) {
      throw ConfigError(fmt::format("--output {}: {} is there already; --overwrite replaces it",
                                    options.output, path));
    }
  }
}

/// One run of prepare_data, step by step.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const PrepareHooks& hooks)
      : options_(options), hooks_(hooks), folder_(options.output) {}

  std::optional<PrepareSummary> run() {
    find_files();
    if (!stopped()) {
      make_tokenizer();
    }
    if (!stopped()) {
      encode_all();
    }
    if (stopped()) {
      return std::nullopt;
    }
    publish();
    return std::move(summary_);
  }

 private:
  struct Output {
    std::unique_ptr<MegatronWriter> writer;
    PreparedSplit split;
  };

  [[nodiscard]] bool stopped() const { return hooks_.stop_requested(); }

  void find_files() {
    hooks_.on_progress(progress_);
    const InputSelection selection{.extensions = options_.extensions,
                                   .left_out_folder = options_.output,
                                   .exclude = options_.exclude,
                                   .as_text = options_.as_text};
    take(find_input_files(options_.input, selection, hooks_.stop_requested));
    if (options_.validation_input.empty()) {
      is_validation_ = choose_validation(files_, options_.validation, options_.seed);
    } else {
      is_validation_.assign(files_.size(), false);
      take(find_input_files(options_.validation_input, selection, hooks_.stop_requested));
      is_validation_.resize(files_.size(), true);
    }
    refuse_not_text(not_text_);
    for (const InputFile& file : files_) {
      progress_.bytes_total += file.bytes;
    }
    progress_.files_total = summary_.files_found = static_cast<std::int64_t>(files_.size());
  }

  void take(InputFiles found) {
    std::move(found.files.begin(), found.files.end(), std::back_inserter(files_));
    std::move(found.unreadable.begin(), found.unreadable.end(),
              std::back_inserter(summary_.unreadable));
    summary_.hidden += found.hidden;
    summary_.folder_links += found.folder_links;
    summary_.special += found.special;
    summary_.excluded += found.excluded;
    std::move(found.not_text.begin(), found.not_text.end(), std::back_inserter(not_text_));
  }

  void make_tokenizer() {
    summary_.tokenizer = options_.tokenizer;
    if (options_.train_sentencepiece) {
      progress_.phase = PrepareProgress::Phase::kTraining;
      hooks_.on_progress(progress_);
      std::vector<const InputFile*> train;
      for (std::size_t i = 0; i < files_.size(); ++i) {
        if (!is_validation_[i]) {
          train.push_back(&files_[i]);
        }
      }
      const std::string model = train_sentencepiece(train,
                                                    {.vocab_size = *options_.train_sentencepiece,
                                                     .seed = options_.seed,
                                                     .threads = threads()},
                                                    hooks_.stop_requested);
      tokenizer_ = Tokenizer::from_sentencepiece_model(model);
      take_along(model);
      summary_.tokenizer = "sentencepiece:" + (folder_ / "tokenizer.model");
    } else {
      tokenizer_ = Tokenizer::make(options_.tokenizer);
      if (options_.tokenizer == "bytes") {
        summary_.identity.kind = "bytes";
      } else {
        take_along(read_sentencepiece_model(options_.tokenizer));
      }
    }
    summary_.vocab_size = tokenizer_->vocab_size();
    summary_.append_eod = options_.append_eod;
    if (options_.append_eod) {
      summary_.vocab_size = std::max(summary_.vocab_size, std::int64_t{*options_.append_eod} + 1);
    }
    summary_.identity.vocab_size = summary_.vocab_size;
    summary_.identity.document_end = options_.append_eod;
  }

  /// The model goes where the ids go: they are worth nothing without it.
  void take_along(const std::string& model) {
    model_file_ = std::make_unique<OutputFile>(folder_ / "tokenizer.model");
    model_file_->append(model);
    model_file_->sync();
    summary_.identity.kind = "sentencepiece";
    summary_.identity.hash = content_hash(model);
    summary_.identity.file = "tokenizer.model";
  }

  [[nodiscard]] int threads() const {
    return options_.threads > 0 ? options_.threads : num_usable_cores();
  }

  void encode_all() {
    const TokenType type = type_for_vocabulary(summary_.vocab_size);
    summary_.token_type = name_of(type);
    const auto open = [&](const char* name) {
      const std::string prefix = folder_ / name;
      return Output{std::make_unique<MegatronWriter>(prefix, type), {.prefix = prefix}};
    };
    train_ = open("train");
    validation_ = open("validation");
    EncodingPipeline pipeline(*tokenizer_, threads(), options_.append_eod);
    DuplicateFinder duplicates(files_);
    progress_.phase = PrepareProgress::Phase::kEncoding;
    try {
      for (std::size_t i = 0; i < files_.size() && !stopped(); ++i) {
        progress_.files_done = static_cast<std::int64_t>(i);
        const std::int64_t done_before = progress_.bytes_done;
        encode_file(files_[i], is_validation_[i] ? validation_ : train_, pipeline, duplicates);
        progress_.bytes_done = done_before + files_[i].bytes;
        hooks_.on_progress(progress_);
      }
      progress_.files_done = progress_.files_total;
      pipeline.flush();
      progress_.phase = PrepareProgress::Phase::kFinishing;
      hooks_.on_progress(progress_);
      if (!stopped()) {
        finish(train_);
        finish(validation_);
      }
    } catch (const DiskError& error) {
      throw DiskError(fmt::format("{}{}", error.what(), estimate_of_need()));
    }
  }

  void encode_file(const InputFile& file,
                   Output& output,
                   EncodingPipeline& pipeline,
                   DuplicateFinder& duplicates) {
    try {
      if (options_.deduplicate && file.bytes > 0 &&
          duplicates.was_there(file, hooks_.stop_requested)) {
        ++summary_.duplicates;
        return;
      }
      stream_file(file, output, pipeline);
    } catch (const ReadFailure& failure) {
      // The writer may have a part of this document already, which is taken back.
      pipeline.next_text();
      pipeline.push(*output.writer, Then::kDiscardDocument);
      summary_.unreadable.push_back(fmt::format("{}: {}", file.path, failure.reason));
    }
  }

  void stream_file(const InputFile& file, Output& output, EncodingPipeline& pipeline) {
    TextReader reader(file.path);
    const auto cut = [&](std::string_view text) { return tokenizer_->length_to_cut(text); };
    std::int64_t bytes = 0;
    while (!stopped()) {
      std::string& text = pipeline.next_text();
      if (!reader.next(text, tokenizer_->longest_text(), cut)) {
        break;
      }
      if (std::memchr(text.data(), '\0', text.size()) != nullptr) {
        ++summary_.binary;
        text.clear();
        pipeline.push(*output.writer, Then::kDiscardDocument);
        return;
      }
      bytes += static_cast<std::int64_t>(text.size());
      progress_.bytes_done += static_cast<std::int64_t>(text.size());
      pipeline.push(*output.writer, Then::kGoOn);
      hooks_.on_progress(progress_);
    }
    if (bytes == 0) {
      ++summary_.empty;
      return;
    }
    pipeline.next_text();
    pipeline.push(*output.writer, Then::kEndDocument);
    output.split.text_bytes += bytes;
  }

  void finish(Output& output) {
    output.writer->finish();
    output.split.documents = output.writer->num_documents();
    output.split.tokens = output.writer->num_tokens();
    output.split.content = output.writer->content();
    output.split.bin_bytes =
        output.split.tokens * bytes_per_token(type_for_vocabulary(summary_.vocab_size));
  }

  /// Tells the user of a full disk how much more it would have taken, going by what was written.
  [[nodiscard]] std::string estimate_of_need() const {
    const std::int64_t left = progress_.bytes_total - progress_.bytes_done;
    if (progress_.bytes_done == 0 || left <= 0) {
      return "";
    }
    const std::int64_t tokens = train_.writer->num_tokens() + validation_.writer->num_tokens();
    const double written =
        static_cast<double>(tokens * bytes_per_token(type_for_vocabulary(summary_.vocab_size)));
    const double ratio = written / static_cast<double>(progress_.bytes_done);
    return fmt::format("; {:.1f} MiB of the input are left, which need about {:.1f} MiB",
                       static_cast<double>(left) / 1048576.0,
                       static_cast<double>(left) * ratio / 1048576.0);
  }

  void publish() {
    if (train_.split.tokens == 0) {
      throw ConfigError(fmt::format(
          "--input: no text for training in {} files (empty: {}, binary: {}, unreadable: {}, for "
          "validation: {})",
          summary_.files_found, summary_.empty, summary_.binary, summary_.unreadable.size(),
          validation_.split.documents));
    }
    // An older data set makes way first: its index would not fit the new tokens.
    for (const char* name :
         {"dataset.json", "validation.idx", "validation.hashes", "validation.bin"}) {
      std::error_code ignored;
      fs::remove(folder_ / name, ignored);
    }
    if (model_file_) {
      model_file_->publish();
    }
    summary_.train = train_.split;
    if (validation_.split.tokens > 0) {
      validation_.writer->publish();
      summary_.validation = validation_.split;
    }
    train_.writer->publish();
    summary_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    OutputFile description(folder_ / "dataset.json");
    description.append(to_json(summary_) + "\n");
    description.sync();
    description.publish();
    sync_folder(options_.output);
  }

  const PrepareOptions& options_;
  const PrepareHooks& hooks_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  OutputFolder folder_;
  PrepareSummary summary_;
  PrepareProgress progress_;
  std::vector<InputFile> files_;
  std::vector<NotTextFile> not_text_;
  std::vector<bool> is_validation_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<OutputFile> model_file_;
  Output train_;
  Output validation_;
};

}  // namespace

std::optional<PrepareSummary> prepare_data(const PrepareOptions& options,
                                           const PrepareHooks& hooks) {
  check_options(options);
  return Preparation(options, hooks).run();
}

}  // namespace dstrain
