// Store: a small key-value meeting place that the ranks of a job share while they start.
// Every wait has a deadline. Implementations: TcpStore (tcp_store.h), MemoryStore (below; threads
// of one process).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// The contribution of one of `size` callers to an all-to-all: an entry for each of them, of equal
/// bytes.
struct AllToAll {
  std::string_view key;  ///< names it; the same for all, and used once
  int rank = 0;
  int size = 1;
  std::string_view agreed;  ///< the same for all, or it fails
  std::string_view row;     ///< entry r is for the caller that is rank r

  /// Throws InternalError unless the row has as many entries as there are ranks.
  void validate() const;
};

/// The result for one caller: entry `rank` of every row, in the order of the ranks; or, when the
/// deadline has passed, only the ranks that did not come.
struct Column {
  std::string entries;
  std::vector<int> missing;
};

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  /// The value, once somebody has set it. Throws Timeout, naming the key, after `timeout`.
  [[nodiscard]] virtual std::string get(std::string_view key,
                                        std::chrono::milliseconds timeout) = 0;
  /// Adds to a decimal counter that starts at 0; returns the sum.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  /// Waits until all have brought their rows, which the store then forgets. It takes one request
  /// per rank, and in all as many bytes as there are entries; were each row a value that all others
  /// get, it would take those times the number of ranks. Throws InternalError, on every caller, if
  /// they do not fit together.
  [[nodiscard]] virtual Column all_to_all(const AllToAll& call,
                                          std::chrono::milliseconds timeout) = 0;
};

/// A Store for threads of one process.
std::unique_ptr<Store> make_memory_store();

}  // namespace dstrain
