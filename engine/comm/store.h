// Store: a small key-value meeting place that the ranks of a job share while they start.
// Every wait has a deadline. Implementations: TcpStore (tcp_store.h), MemoryStore (below; threads
// of one process).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace dstrain {

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
};

/// A Store for threads of one process.
std::unique_ptr<Store> make_memory_store();

}  // namespace dstrain
