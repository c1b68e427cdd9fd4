// EncodingPipeline: texts in, token ids into writers out, in the same order. Texts gather until
// there is enough for all threads, are encoded in parallel, then written: memory stays bounded and
// the output does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/megatron_writer.h"
#include "engine/data/tokenizer.h"

namespace dstrain {

class EncodingPipeline {
 public:
  EncodingPipeline(const Tokenizer& tokenizer, int threads, std::optional<std::int32_t> append_eod);

  /// Says what happens to the document of `writer` after a text.
  enum class Then : std::uint8_t { kGoOn, kEndDocument, kDiscardDocument };

  /// Returns room for the next text, to be filled and then pushed, which ends the reference. It is
  /// the buffer of an older text.
  std::string& next_text();
  void push(MegatronWriter& writer, Then then);
  /// Encodes and writes what has gathered.
  void flush();

 private:
  struct Piece {
    std::string text;
    std::vector<std::int32_t> ids;
    MegatronWriter* writer = nullptr;
    Then then = Then::kGoOn;
  };
  void encode_all();

  const Tokenizer& tokenizer_;
  int threads_;
  std::optional<std::int32_t> append_eod_;
  std::vector<Piece> pieces_;  ///< the first num_pieces_ are in use
  std::size_t num_pieces_ = 0;
  std::size_t gathered_bytes_ = 0;
};

}  // namespace dstrain
