#include "engine/data/token_hashes.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::string_view kMagic{"DSTHASH\0", 8};
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kHeaderBytes = 40;
constexpr std::int64_t kHashBytes = 8;

template <typename T>
void append_value(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0);
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw ConfigError(fmt::format(
      "{}: {}: if another program has rewritten the token files of this name, remove it", path,
      what));
}

}  // namespace

std::string hashes_path(const std::string& prefix) {
  return prefix + ".hashes";
}

void StripeHasher::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::int64_t room = kHashStripeBytes - bytes_ % kHashStripeBytes;
    const auto part = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(room)));
    open_.add(part);
    bytes_ += static_cast<std::int64_t>(part.size());
    bytes = bytes.subspan(part.size());
    if (bytes_ % kHashStripeBytes == 0) {
      stripes_.push_back(open_.value());
      open_.reset();
    }
  }
}

void StripeHasher::keep() {
  kept_stripes_ = stripes_.size();
  kept_bytes_ = bytes_;
  kept_open_ = open_;
}

void StripeHasher::take_back() {
  stripes_.resize(kept_stripes_);
  bytes_ = kept_bytes_;
  open_ = kept_open_;
}

std::string StripeHasher::file_content(std::int64_t idx_bytes, std::uint64_t idx_hash) const {
  std::string text(kMagic);
  append_value(text, kVersion);
  append_value(text, static_cast<std::uint32_t>(kHashStripeBytes));
  append_value(text, bytes_);
  append_value(text, idx_bytes);
  append_value(text, idx_hash);
  for (const std::uint64_t stripe : stripes_) {
    append_value(text, stripe);
  }
  if (bytes_ % kHashStripeBytes != 0) {
    append_value(text, open_.value());
  }
  append_value(text, checksum(text));
  return text;
}

TokenHashes::TokenHashes(const std::string& path) : file_(MappedFile::open<ConfigError>(path)) {}

std::uint64_t TokenHashes::value_at(std::int64_t byte) const {
  std::uint64_t value = 0;
  std::memcpy(&value, file_.bytes().data() + byte, sizeof value);
  return value;
}

std::int64_t TokenHashes::num_stripes() const {
  return divide_up(bin_bytes_, stripe_bytes_);
}

std::unique_ptr<TokenHashes> TokenHashes::open(const std::string& prefix,
                                               const MappedFile& index,
                                               std::int64_t bin_bytes) {
  const std::string path = hashes_path(prefix);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return nullptr;
  }
  std::unique_ptr<TokenHashes> hashes(new TokenHashes(path));
  const MappedFile& file = hashes->file_;
  const std::int64_t size = file.num_bytes();
  if (size < kHeaderBytes + kHashBytes ||
      std::memcmp(file.bytes().data(), kMagic.data(), kMagic.size()) != 0) {
    fail(path, fmt::format("its {} bytes are not the hashes of token files", size));
  }
  const std::uint64_t own = checksum(file.bytes().first(static_cast<std::size_t>(size) - 8));
  if (own != hashes->value_at(size - kHashBytes)) {
    fail(path, fmt::format("is damaged: its {} bytes have the hash {:016x}, it says {:016x}", size,
                           own, hashes->value_at(size - kHashBytes)));
  }
  const std::uint64_t version_and_stripe = hashes->value_at(8);
  const auto version = static_cast<std::uint32_t>(version_and_stripe);
  hashes->stripe_bytes_ = static_cast<std::int64_t>(version_and_stripe >> 32);
  hashes->bin_bytes_ = static_cast<std::int64_t>(hashes->value_at(16));
  if (version != kVersion || hashes->stripe_bytes_ <= 0) {
    fail(path, fmt::format("has version {}, this program reads {}", version, kVersion));
  }
  if (hashes->bin_bytes_ != bin_bytes) {
    fail(path, fmt::format("belongs to a .bin of {} bytes, but {}.bin has {}", hashes->bin_bytes_,
                           prefix, bin_bytes));
  }
  if (size != kHeaderBytes + (hashes->num_stripes() + 1) * kHashBytes) {
    fail(path, fmt::format("has {} bytes for {} stripes", size, hashes->num_stripes()));
  }
  const std::uint64_t index_hash = checksum(index.bytes());
  if (index_hash != hashes->value_at(32)) {
    throw ConfigError(fmt::format(
        "{}: is damaged: its {} bytes have the hash {:016x}, {} says {} bytes and {:016x}; if both "
        "token files were rewritten by another program, remove {}",
        index.path(), index.num_bytes(), index_hash, path, hashes->value_at(24),
        hashes->value_at(32), path));
  }
  hashes->compared_ = std::make_unique<std::atomic<std::uint64_t>[]>(
      static_cast<std::size_t>(divide_up(hashes->num_stripes(), 64)));
  return hashes;
}

void TokenHashes::check(const MappedFile& bin, std::int64_t begin, std::int64_t length) const {
  if (length <= 0) {
    return;
  }
  for (std::int64_t stripe = begin / stripe_bytes_; stripe * stripe_bytes_ < begin + length;
       ++stripe) {
    const auto word = static_cast<std::size_t>(stripe / 64);
    const std::uint64_t bit = std::uint64_t{1} << (stripe % 64);
    if ((compared_[word].load(std::memory_order_relaxed) & bit) == 0) {
      check_stripe(bin, stripe);
      compared_[word].fetch_or(bit, std::memory_order_relaxed);
    }
  }
}

void TokenHashes::check_stripe(const MappedFile& bin, std::int64_t stripe) const {
  const std::int64_t begin = stripe * stripe_bytes_;
  const std::int64_t length = std::min(stripe_bytes_, bin_bytes_ - begin);
  bin.will_need(begin, length);
  const std::uint64_t found = checksum(
      bin.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(length)));
  const std::uint64_t expected = value_at(kHeaderBytes + stripe * kHashBytes);
  if (found != expected) {
    throw ConfigError(
        fmt::format("{}: is damaged: stripe {} (bytes {} to {}) has the hash {:016x}, {} says "
                    "{:016x}; copy the "
                    "token files again, or recreate them with prepare-data --overwrite",
                    bin.path(), stripe, begin, begin + length, found, file_.path(), expected));
  }
}

}  // namespace dstrain
