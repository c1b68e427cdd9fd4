// StoreRequests: what the store's server keeps, and how it answers: values by key, and the clients
// that wait, for a key that is not there yet or for an all-to-all that is not complete, until it is
// or their time is over. It knows nothing of connections, and serves one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/comm/row_exchange.h"
#include "engine/comm/store_protocol.h"

namespace dstrain {

struct StoreClient;
using StoreWaits = std::multimap<std::chrono::steady_clock::time_point, StoreClient*>;

/// A get or an all-to-all that is not answered yet.
struct StoreWait {
  std::string key;
  StoreWaits::iterator deadline;
  int rank = kNoRank;  ///< in the all-to-all; of a get none

  static constexpr int kNoRank = -1;
};

/// A client, which asks one request at a time: while one waits, no other comes.
struct StoreClient {
  std::optional<StoreWait> wait;
};

class StoreRequests {
 public:
  using Reply = std::function<void(StoreClient&, store_protocol::Status, std::string_view value)>;
  /// `reply` may forget() the client that it is for.
  explicit StoreRequests(Reply reply) : reply_(std::move(reply)) {}

  /// Answers one request, and the clients that waited for it; or makes the client wait. Returns
  /// false, having done nothing, if the request is malformed.
  bool answer(StoreClient& client, std::string_view frame);
  /// Forgets a client that is gone: it gets no more answers.
  void forget(StoreClient& client);
  /// Answers clients whose time is over.
  void pass_deadlines(std::chrono::steady_clock::time_point now);
  /// The earliest deadline of a waiting client; time_point::max() where none waits.
  [[nodiscard]] std::chrono::steady_clock::time_point next_deadline() const;

 private:
  /// An all-to-all that is not complete: its rows, and who waits for a column, by rank.
  struct Gathering {
    RowExchange rows;
    std::vector<StoreClient*> waiting;
  };

  StoreWaits::iterator wait(StoreClient& client, std::int64_t milliseconds);
  void get(StoreClient& client, std::string key, std::int64_t timeout_ms);
  void put(const std::string& key, std::string value);
  void add(StoreClient& client, const std::string& key, std::int64_t amount);
  bool take_row(StoreClient& client, const std::string& key, std::string_view argument);
  void answer_all(Gathering& gathering);

  Reply reply_;
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::vector<StoreClient*>> waiting_for_;  // by key
  std::unordered_map<std::string, Gathering> gatherings_;                   // by key
  StoreWaits waits_;
};

}  // namespace dstrain
