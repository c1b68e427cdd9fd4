// DocumentTaker: takes encoded blocks in the order of the input, decides what becomes of each
// document (train, validation, left out), and counts.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/checksum.h"
#include "engine/data/document_sink.h"
#include "engine/data/encoding_pipeline.h"
#include "engine/data/found_input.h"
#include "engine/data/prepare_options.h"
#include "engine/data/prepare_summary.h"

namespace dstrain {

/// The sentence of the first bad line in a block, if one is to stop all of it; "" if there is none.
/// `lines_before`: of the file at `path`, in front of the block.
std::string bad_line_in(const EncodedBlock& block,
                        const std::string& path,
                        std::int64_t lines_before);

class DocumentTaker {
 public:
  /// All of these must outlive it.
  DocumentTaker(const PrepareOptions& options,
                const FoundInput& input,
                DocumentSink& sink,
                PrepareSummary& summary);
  DocumentTaker(const DocumentTaker&) = delete;
  DocumentTaker& operator=(const DocumentTaker&) = delete;

  /// The sentence of the first bad line in a block that stops all of it; "" if there is none.
  [[nodiscard]] std::string reason_to_stop(const EncodedBlock& block) const;
  /// Returns whether the rest of the block's file is wanted.
  bool take(const EncodedBlock& block);

  /// Its state between two blocks.
  struct State {
    std::int64_t lines = 0;           ///< of the file, so far
    bool is_inside_document = false;  ///< a part of a text file was taken, and more of it comes
  };
  [[nodiscard]] const State& state() const { return state_; }
  /// Resumes from such a state. What there is of the open document is read once more, for its
  /// digest. Throws ReadFailure and ConfigError.
  void go_on(const State& state, InputPosition position);

 private:
  bool take_part(const EncodedBlock& block);
  void take_lines(const EncodedBlock& block);
  void take_document(const EncodedBlock& block, const EncodedText& text);
  void take_sample(const EncodedBlock& block, const EncodedText& text);
  void discard_open(Split split);
  [[nodiscard]] Split split_of(std::size_t file) const;
  [[nodiscard]] std::string place_of(const EncodedBlock& block, const EncodedText& text) const;

  const PrepareOptions& options_;
  const FoundInput& input_;
  DocumentSink& sink_;
  PrepareSummary& summary_;
  State state_;
  std::int64_t open_bytes_ = 0;  ///< of the text of the open document
  std::size_t file_to_leave_ = ~std::size_t{0};
  RunningChecksum open_hash_;
};

}  // namespace dstrain
