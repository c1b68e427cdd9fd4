#include "engine/data/encoding_pipeline.h"

#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

constexpr std::size_t kBlocksPerThread = 16;
constexpr std::size_t kBytesPerThread = std::size_t{4} << 20;
/// Buffers above this size are given back: one long line should not stay in every block.
constexpr std::size_t kLongBuffer = std::size_t{8} << 20;

DocumentDigest digest_of(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

template <typename Buffer>
void empty(Buffer& buffer) {
  if (buffer.capacity() * sizeof(buffer[0]) > kLongBuffer) {
    buffer = Buffer();
  }
  buffer.clear();
}

}  // namespace

EncodingPipeline::EncodingPipeline(const std::vector<InputFile>& files,
                                   const TextEncoder& encoder,
                                   Settings settings)
    : files_(files),
      encoder_(encoder),
      settings_(std::move(settings)),
      reader_(files,
              {.cut = [&encoder](std::string_view text) { return encoder.length_to_cut(text); },
               .longest_piece = encoder.longest_text(),
               .longest_line = settings_.longest_line,
               .begin = settings_.begin},
              stopping_) {
  threads_.emplace_back([this] { read_all(); });
  for (int i = 0; i < settings_.threads; ++i) {
    threads_.emplace_back([this] { encode_all(); });
  }
}

EncodingPipeline::~EncodingPipeline() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_room_.notify_all();
  has_block_.notify_all();
}

const EncodedBlock* EncodingPipeline::next(const std::function<bool()>& stop_requested) {
  constexpr auto kPatience = std::chrono::milliseconds(100);
  std::unique_lock lock(mutex_);
  if (with_caller_ != nullptr) {
    bytes_under_way_ -= with_caller_->block.input.bytes.size();
    free_.push_back(std::move(with_caller_));
    has_room_.notify_one();
  }
  while (!stop_requested()) {
    const auto is_ready = [&] {
      return under_way_.empty() ? is_read_ : under_way_.front()->is_done;
    };
    if (!has_finished_.wait_for(lock, kPatience, is_ready)) {
      continue;
    }
    if (under_way_.empty()) {
      return nullptr;
    }
    with_caller_ = std::move(under_way_.front());
    under_way_.pop_front();
    if (with_caller_->failure) {
      std::rethrow_exception(with_caller_->failure);
    }
    return &with_caller_->block;
  }
  return nullptr;
}

std::unique_ptr<EncodingPipeline::Slot> EncodingPipeline::empty_slot() {
  if (free_.empty()) {
    return std::make_unique<Slot>();
  }
  std::unique_ptr<Slot> slot = std::move(free_.back());
  free_.pop_back();
  return slot;
}

void EncodingPipeline::read_all() {
  const auto threads = static_cast<std::size_t>(settings_.threads);
  bool goes_on = true;
  while (goes_on) {
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [&] {
      return stopping_ || under_way_.empty() ||
             (under_way_.size() < threads * kBlocksPerThread &&
              bytes_under_way_ < threads * kBytesPerThread);
    });
    if (stopping_) {
      return;
    }
    std::unique_ptr<Slot> slot = empty_slot();
    lock.unlock();
    slot->is_done = false;
    empty(slot->block.input.bytes);
    try {
      goes_on = reader_.next(slot->block.input);
    } catch (...) {  // a thread's entry point: the failure goes to the caller, in its turn
      slot->failure = std::current_exception();
      slot->is_done = true;
    }
    lock.lock();
    if (!goes_on) {
      break;
    }
    bytes_under_way_ += slot->block.input.bytes.size();
    goes_on = !slot->failure;
    if (goes_on) {
      to_encode_.push_back(slot.get());
    }
    under_way_.push_back(std::move(slot));
    has_block_.notify_one();
  }
  const std::lock_guard lock(mutex_);
  is_read_ = true;
  has_finished_.notify_one();
  has_block_.notify_all();
}

void EncodingPipeline::encode_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_block_.wait(lock, [&] { return stopping_ || is_read_ || !to_encode_.empty(); });
    if (stopping_ || to_encode_.empty()) {
      return;
    }
    Slot& slot = *to_encode_.front();
    to_encode_.pop_front();
    lock.unlock();
    try {
      encode(slot.block);
    } catch (...) {  // a thread's entry point: the failure goes to the caller, in its turn
      slot.failure = std::current_exception();
    }
    lock.lock();
    slot.is_done = true;
    has_finished_.notify_one();
  }
}

void EncodingPipeline::encode(EncodedBlock& block) const {
  const InputBlock& input = block.input;
  block.texts.clear();
  empty(block.ids);
  block.num_lines = 0;
  block.notes = {};
  const InputFile& file = files_[input.file];
  if (!file.is_json_lines) {
    try {
      return encode_part(block);
    } catch (const ConfigError& error) {  // the tokenizer's, which does not know whose text it is
      throw ConfigError(fmt::format("--input: {}: {}", file.path, error.what()));
    }
  }
  if (input.is_line_too_long) {
    block.num_lines = 1;
    EncodedText& bad = block.texts.emplace_back();
    bad.kind = EncodedText::Kind::kBadLine;
    bad.why =
        fmt::format("has more than {} bytes, which --longest-line allows", settings_.longest_line);
  }
  const std::string_view lines = input.bytes;
  for (std::size_t begin = 0; begin < lines.size(); ++block.num_lines) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    encode_line(lines.substr(begin, end - begin), block);
    begin = end + 1;
  }
}

void EncodingPipeline::encode_part(EncodedBlock& block) const {
  const InputBlock& input = block.input;
  if (input.bytes.empty()) {
    return;
  }
  EncodedText& part = block.texts.emplace_back();
  part.bytes = static_cast<std::int64_t>(input.bytes.size());
  if (std::memchr(input.bytes.data(), '\0', input.bytes.size()) != nullptr) {
    part.kind = EncodedText::Kind::kBinary;
    return;
  }
  if (input.begins_file && input.ends_file) {
    part.digest = digest_of(input.bytes);
  }
  std::size_t begin = 0;
  TextPlace place = input.begins_file ? TextPlace::kBegins : TextPlace::kContinues;
  for (const std::size_t end : input.piece_ends) {
    encoder_.encode_part(std::string_view(input.bytes).substr(begin, end - begin), place,
                         block.ids);
    begin = end;
    place = TextPlace::kContinues;
  }
  part.ids_end = block.ids.size();
}

void EncodingPipeline::encode_line(std::string_view line, EncodedBlock& block) const {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
    return;
  }
  EncodedText& document = block.texts.emplace_back();
  document.line = block.num_lines;
  if (static_cast<std::int64_t>(line.size()) > settings_.longest_line) {
    document.kind = EncodedText::Kind::kBadLine;
    document.why =
        fmt::format("has {} bytes; --longest-line allows {}", line.size(), settings_.longest_line);
    return;
  }
  if (settings_.samples != nullptr) {
    return encode_example(line, block);
  }
  JsonField::Line read = settings_.field.read(line);
  if (read.found != JsonField::Found::kText) {
    document.kind = EncodedText::Kind::kBadLine;
    document.why = std::move(read.why);
    return;
  }
  const std::size_t ids_before = block.ids.size();
  try {
    encode_text(read.text, document, block);
  } catch (const ConfigError& error) {
    document.kind = EncodedText::Kind::kBadLine;
    document.why = error.what();
    block.ids.resize(ids_before);
  }
}

/// Replaces the text that encode_line has begun by the samples of the line.
void EncodingPipeline::encode_example(std::string_view line, EncodedBlock& block) const {
  const EncodedText begun = block.texts.back();
  EncodedExample made;
  try {
    made = settings_.samples->encode(line);
  } catch (const ConfigError& error) {  // the tokenizer's
    made.why = error.what();
  }
  if (!made.why.empty()) {
    block.texts.back().kind = EncodedText::Kind::kBadLine;
    block.texts.back().why = std::move(made.why);
    return;
  }
  block.texts.pop_back();
  block.notes.add(made.notes);
  const DocumentDigest digest = digest_of(line);
  for (EncodedSample& sample : made.samples) {
    EncodedText& text = block.texts.emplace_back(begun);
    text.digest = digest;
    text.example = made.kind;
    text.sample = static_cast<int>(&sample - made.samples.data());
    text.bytes = text.sample == 0 ? static_cast<std::int64_t>(line.size()) : 0;
    text.ids_begin = block.ids.size();
    block.ids.insert(block.ids.end(), sample.ids.begin(), sample.ids.end());
    text.ids_end = block.ids.size();
    text.parts = {.trained = std::move(sample.trained),
                  .mode = sample.role == SampleRole::kChosen     ? kChosenMode
                          : sample.role == SampleRole::kRejected ? kRejectedMode
                                                                 : std::uint8_t{0}};
  }
}

/// Encodes the text in the pieces in which a file of that text would be read.
void EncodingPipeline::encode_text(std::string_view text,
                                   EncodedText& into,
                                   EncodedBlock& block) const {
  into.bytes = static_cast<std::int64_t>(text.size());
  if (text.empty()) {
    into.kind = EncodedText::Kind::kEmpty;
    return;
  }
  if (std::memchr(text.data(), '\0', text.size()) != nullptr) {
    into.kind = EncodedText::Kind::kBinary;
    return;
  }
  into.digest = digest_of(text);
  into.ids_begin = block.ids.size();
  const std::size_t longest = encoder_.longest_text();
  TextPlace place = TextPlace::kBegins;
  while (!text.empty()) {
    const std::size_t length =
        text.size() < longest ? text.size() : encoder_.length_to_cut(text.substr(0, longest));
    encoder_.encode_part(text.substr(0, length), place, block.ids);
    text.remove_prefix(length);
    place = TextPlace::kContinues;
  }
  into.ids_end = block.ids.size();
}

}  // namespace dstrain
