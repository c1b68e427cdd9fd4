#include "engine/data/token_dataset.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/usable_cores.h"
#include "engine/config/config_error.h"
#include "engine/data/id_range.h"
#include "engine/data/token_file_format.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kLargestWholeScan = 8 * kGiB;
constexpr std::int64_t kStripes = 256;
constexpr std::int64_t kStripeBytes = 4 * kGiB / kStripes;

/// More threads do not make memory faster, and the other ranks of the host are scanning too.
int num_scan_threads() {
  return std::min(num_usable_cores(), 8);
}

template <typename T>
class MappedTokens final : public TokenFile {
 public:
  MappedTokens(TokenFileLayout layout, std::int64_t vocab_size)
      : layout_(std::move(layout)),
        vocab_size_(vocab_size),
        tokens_(reinterpret_cast<const T*>(layout_.file->bytes().data() + layout_.first_byte),
                static_cast<std::size_t>(layout_.num_tokens)) {
    if (can_be_out_of_range<T>(vocab_size)) {
      scan();
    }
    layout_.file->expect_random_reads();
  }

  [[nodiscard]] std::int64_t num_tokens() const override { return layout_.num_tokens; }
  [[nodiscard]] bool has_hashes() const override { return layout_.hashes != nullptr; }

  void read(std::int64_t begin, std::span<std::int32_t> out) const override {
    const auto count = static_cast<std::int64_t>(out.size());
    check(begin >= 0 && count <= num_tokens() - begin, "tokens [{}, {}) of {} in {}", begin,
          begin + count, num_tokens(), layout_.file->path());
    compare_hashes(begin, count);
    const auto from = tokens_.subspan(static_cast<std::size_t>(begin), out.size());
    if (!scanned_whole_) {
      refuse_if_found(first_out_of_range(from, vocab_size_), begin);
    }
    std::transform(from.begin(), from.end(), out.begin(),
                   [](T id) { return static_cast<std::int32_t>(id); });
  }

  void will_need(std::int64_t begin, std::int64_t count) const noexcept override {
    constexpr auto kItem = static_cast<std::int64_t>(sizeof(T));
    layout_.file->will_need(layout_.first_byte + begin * kItem, count * kItem);
  }

 private:
  void compare_hashes(std::int64_t begin, std::int64_t count) const {
    constexpr auto kItem = static_cast<std::int64_t>(sizeof(T));
    if (layout_.hashes != nullptr) {
      layout_.hashes->check(*layout_.file, layout_.first_byte + begin * kItem, count * kItem);
    }
  }

  void scan() {
    const auto num_bytes = static_cast<std::int64_t>(tokens_.size_bytes());
    layout_.file->expect_sequential_reads();
    if (num_bytes <= kLargestWholeScan) {
      refuse_if_found(first_out_of_range_parallel(tokens_, vocab_size_, num_scan_threads()), 0);
      return;
    }
    scanned_whole_ = false;
    spdlog::info(
        "token ids checked of {}: {} GiB spread over {} GiB; the rest is checked as training reads "
        "it",
        layout_.file->path(), kStripes * kStripeBytes / kGiB, num_bytes / kGiB);
    constexpr auto kStripe = kStripeBytes / static_cast<std::int64_t>(sizeof(T));
    const std::int64_t last = num_tokens() - kStripe;
    for (std::int64_t i = 0; i < kStripes; ++i) {
      // Evenly from the first token to the last; split so that nothing overflows.
      const std::int64_t begin =
          last / (kStripes - 1) * i + last % (kStripes - 1) * i / (kStripes - 1);
      refuse_if_found(
          first_out_of_range_parallel(
              tokens_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(kStripe)),
              vocab_size_, num_scan_threads()),
          begin);
    }
  }

  void refuse_if_found(std::int64_t found, std::int64_t begin) const {
    if (found == kAllInRange) {
      return;
    }
    const std::int64_t index = begin + found;
    compare_hashes(index, 1);  // for a damaged file, that is the better message
    throw ConfigError(fmt::format(
        "{}: token {} (at byte {}) has id {}, outside the vocabulary [0, {}); read as {} {}: was "
        "the file made with another tokenizer, or is model.vocab_size too small?",
        layout_.file->path(), index,
        layout_.first_byte + index * static_cast<std::int64_t>(sizeof(T)),
        static_cast<std::int64_t>(tokens_[static_cast<std::size_t>(index)]), vocab_size_,
        layout_.format, name_of(layout_.type)));
  }

  TokenFileLayout layout_;
  std::int64_t vocab_size_;
  std::span<const T> tokens_;  ///< into the mapped file, which begins on a page: aligned
  bool scanned_whole_ = true;
};

}  // namespace

std::unique_ptr<TokenFile> TokenFile::open(const std::string& prefix, std::int64_t vocab_size) {
  check(vocab_size > 0 && vocab_size <= std::numeric_limits<std::int32_t>::max(),
        "vocabulary of {}", vocab_size);
  TokenFileLayout layout = find_token_file(prefix);
  switch (layout.type) {
    case TokenType::kU8:
      return std::make_unique<MappedTokens<std::uint8_t>>(std::move(layout), vocab_size);
    case TokenType::kI8:
      return std::make_unique<MappedTokens<std::int8_t>>(std::move(layout), vocab_size);
    case TokenType::kI16:
      return std::make_unique<MappedTokens<std::int16_t>>(std::move(layout), vocab_size);
    case TokenType::kU16:
      return std::make_unique<MappedTokens<std::uint16_t>>(std::move(layout), vocab_size);
    case TokenType::kI32:
      return std::make_unique<MappedTokens<std::int32_t>>(std::move(layout), vocab_size);
    case TokenType::kI64:
      return std::make_unique<MappedTokens<std::int64_t>>(std::move(layout), vocab_size);
    case TokenType::kF32:
    case TokenType::kF64:
      break;
  }
  check(false, "token type {}", static_cast<int>(layout.type));
  return nullptr;
}

}  // namespace dstrain
