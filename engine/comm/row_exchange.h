// RowExchange: what a store keeps of one all-to-all until its last caller has come. Both stores are
// built on it, so that they refuse the same callers with the same words.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/store.h"

namespace dstrain {

class RowExchange {
 public:
  /// Begins an all-to-all with what this caller brings beside its entries, which the others must
  /// bring too. Takes no row yet.
  explicit RowExchange(const AllToAll& first);

  /// Takes the caller's row. One that does not fit the others' fails the all-to-all for good.
  void bring(const AllToAll& call);
  /// The reason why it failed, the same for every caller; "" if it has not.
  [[nodiscard]] const std::string& failure() const { return failure_; }

  [[nodiscard]] bool complete() const { return num_missing_ == 0 && failure_.empty(); }
  /// Ranks whose row is not there yet, ascending.
  [[nodiscard]] std::vector<int> missing() const;
  /// Entry `rank` of every row, in the order of the rows. Valid only once all rows are there.
  [[nodiscard]] std::string column(int rank) const;

 private:
  [[nodiscard]] std::string mismatch(const AllToAll& call) const;

  const std::string agreed_;
  const std::size_t row_bytes_;
  std::vector<std::string> rows_;  ///< by rank; empty: not there yet
  std::size_t num_missing_;
  std::string failure_;
};

}  // namespace dstrain
