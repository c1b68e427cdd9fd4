// PieceCounter: how often each piece occurs that a tokenizer's pattern cuts texts into, counted by
// several threads. It holds a bounded number of distinct pieces; of a text that has more, a share
// is to be counted, by another counter.
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
  /// `halvings`: how often the share of the texts that count is halved. Which do, their content
  /// decides. `pieces` must outlive it.
  PieceCounter(const PreTokenizer& pieces, int halvings, Limits limits);
  ~PieceCounter() override;

  /// Counts the pieces and gives no ids. Whether a text is counted does not depend on `place`.
  void encode_part(std::string_view text,
                   TextPlace place,
                   std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::size_t length_to_cut(std::string_view text) const override;
  [[nodiscard]] std::size_t longest_text() const override { return std::size_t{1} << 20; }

  /// More distinct pieces came than there is room for, and no further ones are counted. In the end
  /// this depends on the texts alone, not on the threads.
  [[nodiscard]] bool is_full() const { return is_full_; }
  /// Takes over what threads have counted; none may be at work.
  void finish();
  [[nodiscard]] std::int64_t num_pieces() const { return num_pieces_; }
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }
  void for_each(const std::function<void(std::string_view piece, std::int64_t count)>& visit) const;

 private:
  /// The table of all threads is in parts, each with its lock. A piece's hash names its part.
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
