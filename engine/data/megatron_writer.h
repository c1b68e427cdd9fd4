// MegatronWriter: writes documents of token ids, one after the other, into PREFIX.bin and
// PREFIX.idx, and their hashes into PREFIX.hashes (token_hashes.h). The .bin streams to the disk;
// 12 bytes per document stay in memory until the .idx is written.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/checksum.h"
#include "engine/chat/sample_encoder.h"
#include "engine/data/input/byte_stream.h"
#include "engine/data/megatron_index.h"
#include "engine/data/output_file.h"
#include "engine/data/token_hashes.h"

namespace dstrain {

/// The narrowest type Megatron has for ids below `vocab_size`: u8, u16 (as Megatron, below 65500)
/// or i32.
[[nodiscard]] TokenType type_for_vocabulary(std::int64_t vocab_size);

/// What of a sample's tokens is trained, and the bits of its modes beside that.
struct SampleParts {
  std::vector<EncodedSample::Trained> trained{};
  std::uint8_t mode = 0;  ///< kChosenMode, kRejectedMode
};

class MegatronWriter {
 public:
  MegatronWriter(const std::string& prefix, TokenType type);
  /// Continues what another one kept, `num_tokens` tokens in all. They must be named, document by
  /// document, with restore() before anything is appended.
  MegatronWriter(const std::string& prefix, TokenType type, std::int64_t num_tokens);

  /// Appends ids to the open document.
  void append(std::span<const std::int32_t> ids);
  void end_document();
  /// Appends a whole sample of fine-tuning data as a document: its answers are trained, the rest is
  /// context. A file has either such documents or others. Throws ConfigError where a part of one
  /// has more than 2^30 tokens.
  void append_sample(std::span<const std::int32_t> ids, const SampleParts& parts);
  /// Forgets the document that is open, as if it had never begun.
  void discard_document();

  [[nodiscard]] std::int64_t num_tokens() const { return tokens_before_ + tokens_open_; }
  [[nodiscard]] std::int64_t num_documents() const {
    return static_cast<std::int64_t>(sequences_of_document_.size());
  }
  /// A hash of the ids of all ended documents and of their ends: 16 hexadecimal digits.
  [[nodiscard]] std::string content() const;
  /// The same for the document that is open.
  [[nodiscard]] std::string open_content() const;
  [[nodiscard]] std::int64_t open_tokens() const { return tokens_open_; }

  /// Puts the tokens so far on the disk, where they stay for another one to continue if this one
  /// does not finish.
  void keep();
  /// Undoes keep().
  void let_go() { bin_.let_go(); }
  /// Reads the next tokens of the document that is open, or of a new one, back from the disk.
  /// Throws ReadFailure.
  void restore(std::int64_t num_tokens);

  /// Writes the index and puts both files on the disk. Nothing has its final name yet.
  void finish();
  /// Called after finish(): gives the files their names. Older ones are replaced, and are at no
  /// moment paired with a new one.
  void publish();

 private:
  void append_bytes(std::span<const std::byte> bytes);
  template <typename T>
  void append_as(std::span<const std::int32_t> ids);
  void count(std::span<const std::int32_t> ids);
  void close_document(std::int32_t sequences);

  std::string prefix_;
  TokenType type_;
  OutputFile bin_;
  OutputFile idx_;
  OutputFile hashes_;
  StripeHasher stripes_;
  std::vector<std::int32_t> sequence_lengths_;
  std::vector<std::uint8_t> sequence_modes_;  ///< of fine-tuning data; else empty
  /// Each document has 1, but those of more than 2^30 tokens are cut, as lengths are i32.
  std::vector<std::int32_t> sequences_of_document_;
  std::int64_t tokens_before_ = 0;  ///< of the documents that are ended
  std::int64_t tokens_open_ = 0;
  std::vector<std::byte> narrow_;
  std::unique_ptr<ByteStream> kept_;  ///< what restore() reads
  RunningChecksum hash_open_;         ///< of the document that is open: it may be discarded
  RunningChecksum hash_before_;       ///< of the hashes of those before it
};

}  // namespace dstrain
