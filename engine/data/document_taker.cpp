#include "engine/data/document_taker.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/data/input/split_files.h"

namespace dstrain {

using Kind = EncodedText::Kind;

namespace {

std::string place(const std::string& path, std::int64_t lines_before, const EncodedText& text) {
  return fmt::format("{}:{}:", path, lines_before + text.line + 1);
}

const char* kind_of(ChatExample::Kind kind) {
  switch (kind) {
    case ChatExample::Kind::kPair:
      return "pairs";
    case ChatExample::Kind::kRated:
      return "rated answers";
    default:
      return "conversations";
  }
}

}  // namespace

std::string bad_line_in(const EncodedBlock& block,
                        const std::string& path,
                        std::int64_t lines_before) {
  const auto bad = std::find_if(block.texts.begin(), block.texts.end(),
                                [](const auto& text) { return text.kind == Kind::kBadLine; });
  return bad == block.texts.end()
             ? ""
             : fmt::format("{} {}; --on-bad-line skip leaves such lines out and counts them",
                           place(path, lines_before, *bad), bad->why);
}

DocumentTaker::DocumentTaker(const PrepareOptions& options,
                             const FoundInput& input,
                             DocumentSink& sink,
                             PrepareSummary& summary)
    : options_(options), input_(input), sink_(sink), summary_(summary) {}

std::string DocumentTaker::reason_to_stop(const EncodedBlock& block) const {
  if (options_.on_bad_line == PrepareOptions::OnBadLine::kSkip) {
    return "";
  }
  return bad_line_in(block, input_.files[block.input.file].path, state_.lines);
}

bool DocumentTaker::take(const EncodedBlock& block) {
  const InputBlock& input = block.input;
  if (input.file == file_to_leave_) {
    return false;
  }
  bool is_wanted = true;
  if (input_.files[input.file].is_json_lines) {
    take_lines(block);
  } else {
    is_wanted = take_part(block);
  }
  if (!input.why_unreadable.empty()) {
    summary_.unreadable.push_back(
        fmt::format("{}: {}", input_.files[input.file].path, input.why_unreadable));
  }
  if (input.ends_file || !is_wanted) {
    state_ = {};
  }
  if (!is_wanted) {
    file_to_leave_ = input.file;
  }
  return is_wanted;
}

bool DocumentTaker::take_part(const EncodedBlock& block) {
  const InputBlock& input = block.input;
  const Split split = split_of(input.file);
  if (!input.why_unreadable.empty()) {
    discard_open(split);
    return true;
  }
  if (!block.texts.empty() && block.texts.front().kind == Kind::kBinary) {
    discard_open(split);
    ++summary_.binary;
    return input.ends_file;
  }
  if (input.begins_file && input.ends_file) {
    if (block.texts.empty()) {
      ++summary_.empty;
    } else {
      take_document(block, block.texts.front());
    }
    return true;
  }
  for (const EncodedText& text : block.texts) {
    sink_.append(split, block.ids_of(text));
    open_hash_.add(std::as_bytes(std::span(input.bytes)));
    open_bytes_ += text.bytes;
    state_.is_inside_document = true;
  }
  if (input.ends_file) {
    const auto [low, high] = open_hash_.wide_value();
    summary_.duplicates += sink_.end_document(split, {low, high}, open_bytes_) ? 0 : 1;
    open_hash_.reset();
    open_bytes_ = 0;
  }
  return true;
}

void DocumentTaker::take_lines(const EncodedBlock& block) {
  summary_.samples.notes.add(block.notes);
  for (const EncodedText& text : block.texts) {
    switch (text.kind) {
      case Kind::kText:
        options_.chat ? take_sample(block, text) : take_document(block, text);
        break;
      case Kind::kEmpty:
        ++summary_.empty;
        break;
      case Kind::kBinary:
        ++summary_.binary;
        break;
      case Kind::kBadLine:
        ++summary_.bad_lines;
        if (summary_.bad_lines_named.size() < PrepareSummary::kMostNamed) {
          summary_.bad_lines_named.push_back(fmt::format("{} {}", place_of(block, text), text.why));
        }
    }
  }
  state_.lines += block.num_lines;
}

void DocumentTaker::take_document(const EncodedBlock& block, const EncodedText& text) {
  Split split = split_of(block.input.file);
  if (input_.files[block.input.file].is_json_lines && options_.validation_input.empty()) {
    split = is_for_validation(text.digest, options_.validation, options_.seed) ? Split::kValidation
                                                                               : Split::kTrain;
  }
  if (!sink_.add_document(split, block.ids_of(text), text.digest, text.bytes)) {
    ++summary_.duplicates;
  }
}

void DocumentTaker::take_sample(const EncodedBlock& block, const EncodedText& text) {
  PrepareSummary::Samples& samples = summary_.samples;
  const char* const kind = kind_of(text.example);
  if (samples.kind.empty()) {
    samples.kind = kind;
  } else if (samples.kind != kind) {
    throw ConfigError(fmt::format(
        "--input: {} is of {}, and what came before it of {}: a run learns from one kind of them",
        place_of(block, text), kind, samples.kind));
  }
  Split split = split_of(block.input.file);
  if (options_.validation_input.empty()) {
    split = is_for_validation(text.digest, options_.validation, options_.seed) ? Split::kValidation
                                                                               : Split::kTrain;
  }
  // A line may make several samples, which are equal to another line's together or not at all.
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;
  const DocumentDigest digest{text.digest.low + kOdd * static_cast<std::uint64_t>(text.sample),
                              text.digest.high};
  if (!sink_.add_sample(split, block.ids_of(text), text.parts, digest, text.bytes)) {
    summary_.duplicates += text.sample == 0 ? 1 : 0;
    return;
  }
  samples.lines += text.sample == 0 ? 1 : 0;
  for (const auto& [begin, end] : text.parts.trained) {
    samples.trained_tokens += static_cast<std::int64_t>(end - begin);
  }
}

void DocumentTaker::discard_open(Split split) {
  if (state_.is_inside_document) {
    sink_.discard_document(split);
    open_hash_.reset();
    open_bytes_ = 0;
  }
}

void DocumentTaker::go_on(const State& state, InputPosition position) {
  state_ = state;
  if (!state.is_inside_document) {
    return;
  }
  const InputFile& file = input_.files[position.file];
  const auto stream = ByteStream::open(file.path, file.compression);
  std::vector<char> bytes(std::size_t{1} << 20);
  while (open_bytes_ < position.byte) {
    const auto room = std::min<std::int64_t>(static_cast<std::int64_t>(bytes.size()),
                                             position.byte - open_bytes_);
    const std::size_t count = stream->read(std::span(bytes).first(static_cast<std::size_t>(room)));
    if (count == 0) {
      throw ReadFailure{fmt::format("{} has become shorter", file.path)};
    }
    open_hash_.add(std::as_bytes(std::span(bytes).first(count)));
    open_bytes_ += static_cast<std::int64_t>(count);
  }
}

Split DocumentTaker::split_of(std::size_t file) const {
  return input_.is_validation[file] ? Split::kValidation : Split::kTrain;
}

std::string DocumentTaker::place_of(const EncodedBlock& block, const EncodedText& text) const {
  return place(input_.files[block.input.file].path, state_.lines, text);
}

}  // namespace dstrain
