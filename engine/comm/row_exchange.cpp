#include "engine/comm/row_exchange.h"

#include <fmt/format.h>

#include "kernels/core/check.h"

namespace dstrain {

void AllToAll::validate() const {
  check(size >= 1 && rank >= 0 && rank < size, "all-to-all \"{}\": rank {} of {}", key, rank, size);
  check(!row.empty() && row.size() % static_cast<std::size_t>(size) == 0,
        "all-to-all \"{}\": {} bytes for {} ranks", key, row.size(), size);
}

namespace {

/// Shortens a text for a message, which travels in one answer; lists of thousands are compared by
/// their beginnings.
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 4096;
  return text.size() <= kMost ? std::string(text) : std::string(text.substr(0, kMost)) + "…";
}

}  // namespace

RowExchange::RowExchange(const AllToAll& first)
    : agreed_(first.agreed),
      row_bytes_(first.row.size()),
      rows_(static_cast<std::size_t>(first.size)),
      num_missing_(rows_.size()) {}

void RowExchange::bring(const AllToAll& call) {
  if (failure_.empty()) {
    failure_ = mismatch(call);
  }
  if (failure_.empty()) {
    rows_[static_cast<std::size_t>(call.rank)] = call.row;
    --num_missing_;
  }
}

std::string RowExchange::mismatch(const AllToAll& call) const {
  if (call.agreed != agreed_) {
    return fmt::format("rank {} brings \"{}\" and the first rank \"{}\"", call.rank,
                       shown(call.agreed), shown(agreed_));
  }
  if (static_cast<std::size_t>(call.size) != rows_.size() || call.row.size() != row_bytes_) {
    return fmt::format("rank {} brings {} bytes for {} ranks and the first rank {} for {}",
                       call.rank, call.row.size(), call.size, row_bytes_, rows_.size());
  }
  if (!rows_[static_cast<std::size_t>(call.rank)].empty()) {
    return fmt::format("rank {} came twice", call.rank);
  }
  return "";
}

std::vector<int> RowExchange::missing() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
    if (rows_[rank].empty()) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

std::string RowExchange::column(int rank) const {
  const std::size_t entry_bytes = row_bytes_ / rows_.size();
  std::string column;
  column.reserve(row_bytes_);
  for (const std::string& row : rows_) {
    column.append(row, static_cast<std::size_t>(rank) * entry_bytes, entry_bytes);
  }
  return column;
}

}  // namespace dstrain
