// EncodingPipeline: input files in, documents as token ids out, in the files' order.
//
//   one thread reads and decompresses ─► several parse JSON and encode ─► the caller takes blocks
//
// so that parsing, encoding and writing run side by side. A bounded number of blocks is under way:
// memory is a few MiB a thread, or several times the longest line if that is more. What comes out
// does not depend on the number of threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/chat/sample_encoder.h"
#include "engine/data/input/document_digest.h"
#include "engine/data/input/input_reader.h"
#include "engine/data/input/json_field.h"
#include "engine/data/megatron_writer.h"
#include "engine/tokenizer/tokenizer.h"

namespace dstrain {

/// One document, or a part of one that is longer than a block.
struct EncodedText {
  enum class Kind : std::uint8_t { kText, kEmpty, kBinary, kBadLine };
  Kind kind = Kind::kText;
  std::size_t ids_begin = 0;  ///< of the block's ids
  std::size_t ids_end = 0;
  std::int64_t bytes = 0;
  DocumentDigest digest{};  ///< of a text that is a whole document
  std::int64_t line = 0;    ///< of the block, from 0; of JSON lines
  SampleParts parts{};      ///< of a sample of fine-tuning data
  int sample = 0;           ///< of those of its line, from 0
  ChatExample::Kind example = ChatExample::Kind::kConversation;  ///< that it is of
  std::string why{};  ///< of a bad line, as a clause; what the tokenizer refuses is one too
};

struct EncodedBlock {
  InputBlock input;
  /// For a text file: its one document, or the part of it that is in this block; none for an empty
  /// part. For JSON lines: one for each line that is not blank.
  std::vector<EncodedText> texts;
  std::vector<std::int32_t> ids;
  std::int64_t num_lines = 0;
  SampleNotes notes{};  ///< of fine-tuning data

  [[nodiscard]] std::span<const std::int32_t> ids_of(const EncodedText& text) const {
    return std::span(ids).subspan(text.ids_begin, text.ids_end - text.ids_begin);
  }
};

class EncodingPipeline {
 public:
  struct Settings {
    JsonField field;
    std::int64_t longest_line;
    int threads;
    InputPosition begin{};
    const SampleEncoder* samples = nullptr;  ///< JSON lines are fine-tuning data, made by this
  };
  /// `files` and `encoder` must outlive it.
  EncodingPipeline(const std::vector<InputFile>& files,
                   const TextEncoder& encoder,
                   Settings settings);
  EncodingPipeline(const EncodingPipeline&) = delete;
  EncodingPipeline& operator=(const EncodingPipeline&) = delete;
  ~EncodingPipeline();

  /// Returns the next block, which stays until the next call; nullptr after the last one, or when
  /// `stop_requested` says so, which is called now and then. Throws what reading or encoding threw.
  const EncodedBlock* next(const std::function<bool()>& stop_requested);
  /// Asks to leave out what is left of a file; blocks of it may still come.
  void leave(std::size_t file) { reader_.leave(file); }

 private:
  struct Slot {
    EncodedBlock block;
    bool is_done = false;
    std::exception_ptr failure;
  };

  void read_all();
  void encode_all();
  void encode(EncodedBlock& block) const;
  void encode_part(EncodedBlock& block) const;
  void encode_line(std::string_view line, EncodedBlock& block) const;
  void encode_example(std::string_view line, EncodedBlock& block) const;
  void encode_text(std::string_view text, EncodedText& into, EncodedBlock& block) const;
  std::unique_ptr<Slot> empty_slot();

  const std::vector<InputFile>& files_;
  const TextEncoder& encoder_;
  Settings settings_;
  std::atomic<bool> stopping_{false};
  InputReader reader_;

  std::mutex mutex_;
  std::condition_variable has_room_;             ///< for the reader
  std::condition_variable has_block_;            ///< for those who encode
  std::condition_variable has_finished_;         ///< for the caller
  std::deque<std::unique_ptr<Slot>> under_way_;  ///< in order; the first is the caller's next
  std::deque<Slot*> to_encode_;
  std::vector<std::unique_ptr<Slot>> free_;
  std::unique_ptr<Slot> with_caller_;
  std::size_t bytes_under_way_ = 0;
  bool is_read_ = false;               ///< all of the input
  std::vector<std::jthread> threads_;  ///< last: they use all of the above
};

}  // namespace dstrain
