#include "engine/data/prepare_data.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/base/usable_cores.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/sample_encoder.h"
#include "engine/config/config_error.h"
#include "engine/data/disk_error.h"
#include "engine/data/document_sink.h"
#include "engine/data/document_taker.h"
#include "engine/data/encoding_pipeline.h"
#include "engine/data/found_input.h"
#include "engine/data/output_file.h"
#include "engine/data/output_folder.h"
#include "engine/data/resume_record.h"
#include "engine/data/trained_tokenizer.h"
#include "engine/tokenizer/tokenizer_source.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// One run of prepare_data, step by step.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const PrepareHooks& hooks)
      : options_(options), hooks_(hooks), folder_(options.output) {}

  std::optional<PrepareSummary> run() {
    find_files();
    // A tokenizer that an interrupted call made is taken from it; of any other kind it is part of
    // what is compared.
    if (!stopped() && makes_tokenizer(options_)) {
      look_for_record();
    }
    if (!stopped()) {
      make_tokenizer();
    }
    if (!stopped() && !makes_tokenizer(options_)) {
      look_for_record();
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
  [[nodiscard]] bool stopped() const { return hooks_.stop_requested(); }

  void find_files() {
    hooks_.on_progress(progress_);
    input_ = find_input(options_, field_, hooks_.stop_requested);
    for (const InputFile& file : input_.files) {
      progress_.bytes_total += file.bytes;
    }
    progress_.files_total = summary_.files_found = static_cast<std::int64_t>(input_.files.size());
    summary_.unreadable = input_.unreadable;
    summary_.hidden = input_.hidden;
    summary_.folder_links = input_.folder_links;
    summary_.special = input_.special;
    summary_.excluded = input_.excluded;
  }

  /// Looks for what an interrupted call left, if this call is to continue it.
  void look_for_record() {
    if (!has_unfinished(options_.output)) {
      return;
    }
    try {
      record_ = read_resume_record(options_.output);
      check_same_settings(*record_, settings(), options_.output);
      if (record_->files != input_.hash_before(record_->position)) {
        throw ConfigError(
            fmt::format("--output {}: an interrupted prepare-data had read {} of other input "
                        "files, or of files "
                        "that have changed since; --overwrite starts over",
                        options_.output, size_text(record_->bytes_done)));
      }
    } catch (const ConfigError&) {
      if (!options_.overwrite) {
        throw;
      }
      record_.reset();
      remove_resume_record(options_.output);
    }
  }

  /// Flags and tokenizer as the record has them, or is to have them.
  [[nodiscard]] std::map<std::string, std::string> settings() const {
    std::map<std::string, std::string> all = deciding_flags(options_);
    if (makes_tokenizer(options_)) {
      all.insert(training_setting(options_, input_));
    } else {
      all["--tokenizer"] = describe(summary_.identity);
    }
    return all;
  }

  void make_tokenizer() {
    TokenizerSource source;
    if (makes_tokenizer(options_)) {
      auto made = record_ ? std::optional(kept_tokenizer(options_))
                          : train_tokenizer(options_, input_, hooks_);
      if (!made) {
        return;
      }
      source = std::move(*made);
    } else {
      source = TokenizerSource::find(options_.tokenizer);
    }
    tokenizer_ = source.make();
    summary_.tokenizer = source.name;
    summary_.identity = source.identity();
    take_along(source);
    summary_.vocab_size = tokenizer_->vocab_size();
    // A tokenizer made here says itself what ends a document.
    summary_.append_eod = options_.append_eod;
    if (options_.train_bpe && !summary_.append_eod) {
      summary_.append_eod = tokenizer_->end_of_text();
    }
    if (summary_.append_eod) {
      summary_.vocab_size = std::max(summary_.vocab_size, std::int64_t{*summary_.append_eod} + 1);
    }
    summary_.identity.vocab_size = summary_.vocab_size;
    summary_.identity.document_end = summary_.append_eod;
    if (options_.chat) {
      make_sample_encoder(source);
    }
  }

  /// What writes conversations: the template and the stop tokens of the tokenizer's folder, or of
  /// those that are named.
  void make_sample_encoder(const TokenizerSource& source) {
    const fs::path folder = source.folder();
    const fs::path named =
        options_.chat_template.empty() ? folder : fs::path(options_.chat_template);
    if (!options_.chat_template.empty() || (!folder.empty() && ChatTemplate::is_in(folder))) {
      chat_.emplace(ChatTemplate::find(named, folder));
      summary_.samples.chat_template = chat_->file();
    }
    std::vector<std::int32_t> stops = stop_ids_of(folder);
    if (const auto end = tokenizer_->end_of_text()) {
      stops.push_back(*end);
    }
    for (const std::string& text : options_.stop_tokens) {
      std::vector<std::int32_t> ids;
      tokenizer_->encode(text, ids);
      if (ids.size() != 1) {
        throw ConfigError(
            fmt::format("--stop-token {}: the tokenizer makes {} tokens of it, "
                        "expected one",
                        text, ids.size()));
      }
      stops.push_back(ids.front());
    }
    sample_encoder_ = std::make_unique<SampleEncoder>(*tokenizer_, chat_ ? &*chat_ : nullptr,
                                                      std::move(stops), options_.samples);
  }

  /// A model that is never trained to stop goes on after its answers for ever.
  void check_stops() const {
    const SampleNotes& notes = summary_.samples.notes;
    if (!options_.chat || notes.without_stop == 0) {
      return;
    }
    const std::string known =
        sample_encoder_->stops().empty()
            ? "nothing in the tokenizer's folder says which token ends an answer"
            : fmt::format("the model's stop tokens are {}",
                          fmt::join(sample_encoder_->stops(), ", "));
    if (notes.without_stop == notes.answers) {
      throw ConfigError(fmt::format(
          "--input: none of the {} has a token that ends it, so that a model trained on them would "
          "not learn to stop: {}; --stop-token names the one that the template writes",
          counted(notes.answers, "answer"), known));
    }
    spdlog::warn("{} of {} have no token that ends them: {}", grouped(notes.without_stop),
                 counted(notes.answers, "answer"), known);
  }

  /// The tokenizer goes where the ids go: they are worth nothing without it.
  void take_along(const TokenizerSource& source) {
    for (const auto& [name, content] : source.files) {
      const std::string path = folder_ / name.c_str();
      if (record_ && makes_tokenizer(options_)) {
        tokenizer_files_.push_back(
            std::make_unique<OutputFile>(path, static_cast<std::int64_t>(content.size())));
        continue;
      }
      auto& file = tokenizer_files_.emplace_back(std::make_unique<OutputFile>(path));
      file->append(content);
      file->sync();
    }
  }

  [[nodiscard]] int threads() const {
    return options_.threads > 0 ? options_.threads : num_usable_cores();
  }

  void encode_all() {
    const TokenType type = type_for_vocabulary(summary_.vocab_size);
    summary_.token_type = name_of(type);
    const DocumentSink::Settings settings{
        .folder = folder_.path(),
        .type = type,
        .append_eod = summary_.append_eod,
        .deduplicate = options_.deduplicate,
        .before_discard = [this] { save_without_open_document(); }};
    try {
      if (record_) {
        spdlog::info("resuming after {} of {}, which an interrupted run had read",
                     size_text(record_->bytes_done), size_text(progress_.bytes_total));
        progress_.phase = PrepareProgress::Phase::kChecking;
        hooks_.on_progress(progress_);
      }
      sink_ = record_ ? std::make_unique<DocumentSink>(settings, record_->kept)
                      : std::make_unique<DocumentSink>(settings);
      taker_ = std::make_unique<DocumentTaker>(options_, input_, *sink_, summary_);
      if (record_) {
        go_on_from_record();
      }
      progress_.phase = PrepareProgress::Phase::kEncoding;
      take_all();
      if (stopped()) {
        save();
        return;
      }
      progress_.phase = PrepareProgress::Phase::kFinishing;
      hooks_.on_progress(progress_);
      summary_.train = finish(Split::kTrain);
      const PreparedSplit validation = finish(Split::kValidation);
      if (validation.tokens > 0) {
        summary_.validation = validation;
      }
    } catch (const DiskError& error) {
      throw DiskError(fmt::format("{}{}", error.what(), estimate_of_need()));
    }
  }

  void go_on_from_record() {
    saved_record_ = record_;
    const PrepareSummary& counts = record_->counts;
    summary_.duplicates = counts.duplicates;
    summary_.binary = counts.binary;
    summary_.empty = counts.empty;
    summary_.bad_lines = counts.bad_lines;
    summary_.bad_lines_named = counts.bad_lines_named;
    summary_.unreadable.insert(summary_.unreadable.end(), counts.unreadable.begin(),
                               counts.unreadable.end());
    seconds_before_ = counts.seconds;
    position_ = record_->position;
    progress_.bytes_before = progress_.bytes_done = record_->bytes_done;
    try {
      taker_->go_on({record_->lines, record_->is_inside_document}, position_);
    } catch (const ReadFailure& failure) {
      throw ConfigError(fmt::format("--input: {}; --overwrite starts over", failure.reason));
    }
  }

  void take_all() {
    EncodingPipeline pipeline(input_.files, *tokenizer_,
                              {.field = field_,
                               .longest_line = options_.longest_line,
                               .threads = threads(),
                               .begin = position_,
                               .samples = sample_encoder_.get()});
    for (std::size_t i = 0; i < position_.file; ++i) {
      bytes_in_front_ += input_.files[i].bytes;
    }
    while (const EncodedBlock* block = next_block(pipeline)) {
      const InputBlock& input = block->input;
      if (const std::string why = taker_->reason_to_stop(*block); !why.empty()) {
        save();
        throw ConfigError("--input: " + why);
      }
      const bool is_wanted = taker_->take(*block);
      if (!is_wanted) {
        pipeline.leave(input.file);
      }
      const InputPosition reached = input.ends_file || !is_wanted
                                        ? InputPosition{input.file + 1, 0}
                                        : InputPosition{input.file, input.text_end};
      for (; position_.file < reached.file; ++position_.file) {
        bytes_in_front_ += input_.files[position_.file].bytes;
      }
      position_ = reached;
      progress_.bytes_done = bytes_in_front_ + (reached.byte > 0 ? input.file_offset : 0);
      progress_.files_done = static_cast<std::int64_t>(reached.file);
      hooks_.on_progress(progress_);
      if (Clock::now() - saved_ >= hooks_.save_interval) {
        save();
      }
    }
    progress_.files_done = progress_.files_total;
  }

  /// Before an error in the input is reported, the part before it is saved.
  const EncodedBlock* next_block(EncodingPipeline& pipeline) {
    try {
      return pipeline.next(hooks_.stop_requested);
    } catch (const ConfigError&) {
      save();
      throw;
    }
  }

  /// Leaves what another call can continue from, once there is anything.
  enum class Stage : bool { kTaking, kPublishing };
  void save(Stage stage = Stage::kTaking) {
    saved_ = Clock::now();
    // Fine-tuning data are small, and made from the beginning each time.
    if (sink_->is_empty() || options_.chat) {
      return;
    }
    ResumeRecord record{.settings = settings(),
                        .files = input_.hash_before(position_),
                        .position = position_,
                        .lines = taker_->state().lines,
                        .is_inside_document = taker_->state().is_inside_document,
                        .bytes_done = progress_.bytes_done,
                        .is_publishing = stage == Stage::kPublishing,
                        .kept = sink_->keep(),
                        .counts = summary_};
    record.counts.seconds = seconds();
    record.counts.unreadable.erase(
        record.counts.unreadable.begin(),
        record.counts.unreadable.begin() + static_cast<std::ptrdiff_t>(input_.unreadable.size()));
    if (makes_tokenizer(options_)) {
      for (const auto& file : tokenizer_files_) {
        file->keep();
      }
    }
    write_resume_record(record, options_.output);
    saved_record_ = std::move(record);
  }

  /// The record goes back to where the open document begins, before the part of that document on
  /// the disk is removed.
  void save_without_open_document() {
    if (!saved_record_ || !saved_record_->is_inside_document) {
      return;
    }
    ResumeRecord& record = *saved_record_;
    record.kept.forget_open();
    record.is_inside_document = false;
    record.position.byte = 0;
    record.files = input_.hash_before(record.position);
    record.bytes_done = bytes_in_front_;
    write_resume_record(record, options_.output);
  }

  [[nodiscard]] double seconds() const {
    return seconds_before_ + std::chrono::duration<double>(Clock::now() - began_).count();
  }

  PreparedSplit finish(Split split) {
    MegatronWriter& writer = sink_->writer(split);
    writer.finish();
    return {.prefix = folder_ / (split == Split::kTrain ? "train" : "validation"),
            .documents = writer.num_documents(),
            .text_bytes = sink_->text_bytes(split),
            .tokens = writer.num_tokens(),
            .bin_bytes =
                writer.num_tokens() * bytes_per_token(type_for_vocabulary(summary_.vocab_size)),
            .content = writer.content()};
  }

  /// Tells the user of a full disk how much more space was needed, estimated from what was written.
  [[nodiscard]] std::string estimate_of_need() const {
    const std::int64_t left = progress_.bytes_total - progress_.bytes_done;
    if (sink_ == nullptr || progress_.bytes_done == 0 || left <= 0) {
      return "";
    }
    const std::int64_t tokens =
        sink_->writer(Split::kTrain).num_tokens() + sink_->writer(Split::kValidation).num_tokens();
    const double written =
        static_cast<double>(tokens * bytes_per_token(type_for_vocabulary(summary_.vocab_size)));
    const double ratio = written / static_cast<double>(progress_.bytes_done);
    return fmt::format("; {:.1f} MiB of the input are left, which need about {:.1f} MiB",
                       static_cast<double>(left) / 1048576.0,
                       static_cast<double>(left) * ratio / 1048576.0);
  }

  void publish() {
    if (summary_.train.tokens == 0) {
      throw ConfigError(fmt::format(
          "--input: no text for training in {} files (empty: {}, binary: {}, bad lines: {}, "
          "unreadable: {}, for validation: {})",
          summary_.files_found, summary_.empty, summary_.binary, summary_.bad_lines,
          summary_.unreadable.size(), summary_.validation ? summary_.validation->documents : 0));
    }
    check_stops();
    save(Stage::kPublishing);
    // An older data set is removed first: its index would not fit the new tokens.
    std::error_code ignored;
    const bool has_tokenizer = fs::exists(folder_ / "dataset.json", ignored);
    for (const char* name : kOutputNames) {
      const std::string_view is = name;
      if (!is.starts_with("train.") && (has_tokenizer || !is.starts_with("tokenizer"))) {
        fs::remove(folder_ / name, ignored);
      }
    }
    for (const auto& file : tokenizer_files_) {
      file->publish();
    }
    if (summary_.validation) {
      sink_->writer(Split::kValidation).publish();
    }
    sink_->writer(Split::kTrain).publish();
    summary_.seconds = seconds();
    OutputFile description(folder_ / "dataset.json");
    description.append(to_json(summary_) + "\n");
    description.sync();
    description.publish();
    sync_folder(options_.output);
    remove_resume_record(options_.output);
    sink_->let_go();
  }

  const PrepareOptions& options_;
  const PrepareHooks& hooks_;
  const Clock::time_point began_ = Clock::now();
  const JsonField field_{options_.field.value_or("text")};
  OutputFolder folder_;
  PrepareSummary summary_;
  PrepareProgress progress_;
  FoundInput input_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_;
  std::unique_ptr<SampleEncoder> sample_encoder_;  ///< of fine-tuning data; uses both
  std::vector<std::unique_ptr<OutputFile>> tokenizer_files_;
  std::optional<ResumeRecord> record_;  ///< of the call that this one continues
  double seconds_before_ = 0.0;         ///< … that it took
  std::unique_ptr<DocumentSink> sink_;
  std::unique_ptr<DocumentTaker> taker_;
  InputPosition position_;           ///< behind what was taken
  std::int64_t bytes_in_front_ = 0;  ///< of the files in front of that one
  std::optional<ResumeRecord> saved_record_;
  Clock::time_point saved_ = Clock::now();
};

}  // namespace

std::optional<PrepareSummary> prepare_data(const PrepareOptions& options,
                                           const PrepareHooks& hooks) {
  take_back_names(options.output);
  check_options(options);
  return Preparation(options, hooks).run();
}

bool has_unfinished(const std::string& output) {
  std::error_code ignored;
  return fs::exists(resume_record_path(output), ignored);
}

}  // namespace dstrain
