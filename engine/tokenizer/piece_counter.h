// PieceCounter: counts, with several threads, how often each piece occurs that a tokenizer's
// pattern cuts texts into. It holds a bounded number of distinct pieces; if a text has more,
// another counter has to count a share of it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/tokenizer/piece_table.h"
#include "engine/tokenizer/pre_tokenizers.h"
#include "engine/tokenizer/tokenizer.h"

namespace dstrain {

class PieceCounter final : public TextEncoder {
 public:
  struct Limits {
    std::int64_t pieces = std::int64_t{8} << 20;   ///< distinct ones
    std::int64_t bytes = std::int64_t{128} << 20;  ///< of their text
  };
  /// `halvings` says how often the share of the texts that are counted is halved. Their content
  /// decides which ones are. `pieces` must outlive it.
  PieceCounter(const PreTokenizer& pieces, int halvings, Limits limits);
  ~PieceCounter() override;

  /// Counts the pieces and gives no ids. Whether a text is counted does not depend on `place`.
  void encode_part(std::string_view text,
                   TextPlace place,
                   std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::size_t length_to_cut(std::string_view text) const override;
  [[nodiscard]] std::size_t longest_text() const override { return std::size_t{1} << 20; }

  /// Whether more distinct pieces came than there is room for, so that no further ones are counted.
  /// In the end this depends on the texts alone, not on the threads.
  [[nodiscard]] bool is_full() const { return is_full_; }
  /// Collects what threads have counted; none may be running.
  void finish();
  [[nodiscard]] std::int64_t num_pieces() const { return num_pieces_; }
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }
  void for_each(const std::function<void(std::string_view piece, std::int64_t count)>& visit) const;

 private:
  /// The table of all threads is divided into parts, each with its lock. A piece's hash selects its
  /// part.
  static constexpr std::size_t kPartBits = 8;
  struct Part {
    std::mutex mutex;
    PieceTable pieces;
  };

  void take_over(PieceTable& recent) const;

  const PreTokenizer& pre_tokenizer_;
  int halvings_;
  Limits limits_;
  mutable std::mutex recent_mutex_;
  /// Tables of what single threads have counted lately, as most pieces of a text come again soon;
  /// a thread takes one out while it counts.
  mutable std::vector<std::unique_ptr<PieceTable>> recent_;
  mutable std::array<Part, std::size_t{1} << kPartBits> parts_;
  mutable std::atomic<std::int64_t> num_pieces_{0};
  mutable std::atomic<std::int64_t> num_bytes_{0};
  mutable std::atomic<bool> is_full_{false};
};

}  // namespace dstrain
