#include "engine/data/encoding_pipeline.h"

#include <atomic>
#include <exception>
#include <span>
#include <thread>

namespace dstrain {
namespace {

/// A round is so much text for each thread, or one text if that is longer.
constexpr std::size_t kRoundBytes = std::size_t{512} << 10;
/// A round ends with this many texts even if they are short: each keeps its buffers.
constexpr std::size_t kMostPieces = 512;
constexpr std::size_t kLongBuffer = std::size_t{64} << 10;

}  // namespace

EncodingPipeline::EncodingPipeline(const Tokenizer& tokenizer,
                                   int threads,
                                   std::optional<std::int32_t> append_eod)
    : tokenizer_(tokenizer),
      threads_(tokenizer.is_slow() ? threads : 1),
      append_eod_(append_eod),
      pieces_(1) {}

std::string& EncodingPipeline::next_text() {
  Piece& piece = pieces_[num_pieces_];
  piece.text.clear();
  return piece.text;
}

void EncodingPipeline::push(MegatronWriter& writer, Then then) {
  Piece& piece = pieces_[num_pieces_++];
  piece.writer = &writer;
  piece.then = then;
  gathered_bytes_ += piece.text.size();
  if (num_pieces_ == pieces_.size()) {
    pieces_.emplace_back();
  }
  const auto threads = static_cast<std::size_t>(threads_);
  if (gathered_bytes_ >= threads * kRoundBytes || num_pieces_ >= threads * kMostPieces) {
    flush();
  }
}

void EncodingPipeline::flush() {
  encode_all();
  for (Piece& piece : std::span(pieces_).first(num_pieces_)) {
    piece.writer->append(piece.ids);
    switch (piece.then) {
      case Then::kGoOn:
        break;
      case Then::kEndDocument:
        if (append_eod_) {
          piece.writer->append(std::span(&*append_eod_, 1));
        }
        piece.writer->end_document();
        break;
      case Then::kDiscardDocument:
        piece.writer->discard_document();
    }
  }
  // Buffers are kept for the next round, but long ones only as many as a round can have.
  for (std::size_t i = static_cast<std::size_t>(threads_); i < num_pieces_; ++i) {
    if (pieces_[i].text.capacity() > kLongBuffer) {
      pieces_[i] = {};
    }
  }
  num_pieces_ = 0;
  gathered_bytes_ = 0;
}

void EncodingPipeline::encode_all() {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < num_pieces_ && !failed; i = next++) {
      Piece& piece = pieces_[i];
      piece.ids.clear();
      try {
        tokenizer_.encode(piece.text, piece.ids);
      } catch (...) {  // a thread's entry point: the first failure goes to the caller
        if (!failed.exchange(true)) {
          failure = std::current_exception();
        }
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads_; ++i) {
      helpers.emplace_back(work);
    }
    work();
  }
  if (failed) {
    std::rethrow_exception(failure);
  }
}

}  // namespace dstrain
