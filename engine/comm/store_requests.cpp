#include "engine/comm/store_requests.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace dstrain {

namespace protocol = store_protocol;

bool StoreRequests::answer(StoreClient& client, std::string_view frame) {
  if (frame.size() < 3) {
    return false;
  }
  const auto request = protocol::Request{take_number<std::uint8_t>(frame)};
  const auto key_bytes = take_number<std::uint16_t>(frame);
  if (key_bytes > protocol::kMaxKeyBytes || key_bytes > frame.size()) {
    return false;
  }
  std::string key(frame.substr(0, key_bytes));
  frame.remove_prefix(key_bytes);
  switch (request) {
    case protocol::Request::kSet:
      put(key, std::string(frame));
      reply_(client, protocol::Status::kOk, "");
      return true;
    case protocol::Request::kGet: {
      if (frame.size() != sizeof(std::int64_t)) {
        return false;
      }
      const auto timeout = take_number<std::int64_t>(frame);
      get(client, std::move(key), timeout);
      return true;
    }
    case protocol::Request::kAdd:
      if (frame.size() != sizeof(std::int64_t)) {
        return false;
      }
      add(client, key, take_number<std::int64_t>(frame));
      return true;
    case protocol::Request::kAllToAll:
      return take_row(client, key, frame);
  }
  return false;
}

void StoreRequests::get(StoreClient& client, std::string key, std::int64_t timeout_ms) {
  if (const auto found = values_.find(key); found != values_.end()) {
    reply_(client, protocol::Status::kOk, found->second);
    return;
  }
  waiting_for_[key].push_back(&client);
  client.wait = StoreWait{.key = std::move(key), .deadline = wait(client, timeout_ms)};
}

void StoreRequests::put(const std::string& key, std::string value) {
  const std::string& stored = values_.insert_or_assign(key, std::move(value)).first->second;
  auto waiting = waiting_for_.extract(key);
  if (waiting.empty()) {
    return;
  }
  for (StoreClient* const client : waiting.mapped()) {
    waits_.erase(client->wait->deadline);
    client->wait.reset();
    reply_(*client, protocol::Status::kOk, stored);
  }
}

void StoreRequests::add(StoreClient& client, const std::string& key, std::int64_t amount) {
  const auto found = values_.find(key);
  const std::string_view text = found == values_.end() ? "0" : std::string_view(found->second);
  std::int64_t sum = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), sum);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    reply_(client, protocol::Status::kError, "it holds text, not a number");
    return;
  }
  sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) +
                                  static_cast<std::uint64_t>(amount));
  put(key, std::to_string(sum));
  reply_(client, protocol::Status::kOk, std::to_string(sum));
}

bool StoreRequests::take_row(StoreClient& client,
                             const std::string& key,
                             std::string_view argument) {
  const auto request = protocol::parse_all_to_all(key, argument);
  if (!request) {
    return false;
  }
  const AllToAll& call = request->call;
  auto found = gatherings_.find(key);
  if (found == gatherings_.end()) {
    found = gatherings_
                .emplace(key, Gathering{.rows = RowExchange(call),
                                        .waiting = std::vector<StoreClient*>(
                                            static_cast<std::size_t>(call.size), nullptr)})
                .first;
  }
  Gathering& gathering = found->second;
  gathering.rows.bring(call);
  if (!gathering.rows.failure().empty()) {
    reply_(client, protocol::Status::kError, gathering.rows.failure());
    answer_all(gathering);
    return true;
  }
  gathering.waiting[static_cast<std::size_t>(call.rank)] = &client;
  client.wait =
      StoreWait{.key = key, .deadline = wait(client, request->timeout_ms), .rank = call.rank};
  if (gathering.rows.complete()) {
    answer_all(gathering);
    gatherings_.erase(found);
  }
  return true;
}

/// Those who wait get a column, or the reason why there is none.
void StoreRequests::answer_all(Gathering& gathering) {
  const std::string failure = gathering.rows.failure();
  for (std::size_t rank = 0; rank < gathering.waiting.size(); ++rank) {
    StoreClient* const client = gathering.waiting[rank];
    if (client == nullptr) {
      continue;
    }
    forget(*client);
    if (failure.empty()) {
      reply_(*client, protocol::Status::kOk, gathering.rows.column(static_cast<int>(rank)));
    } else {
      reply_(*client, protocol::Status::kError, failure);
    }
  }
}

StoreWaits::iterator StoreRequests::wait(StoreClient& client, std::int64_t milliseconds) {
  constexpr std::int64_t kYear = std::int64_t{365} * 86'400'000;
  const std::chrono::milliseconds timeout(std::clamp<std::int64_t>(milliseconds, 0, kYear));
  return waits_.emplace(std::chrono::steady_clock::now() + timeout, &client);
}

void StoreRequests::forget(StoreClient& client) {
  if (!client.wait) {
    return;
  }
  if (const int rank = client.wait->rank; rank != StoreWait::kNoRank) {
    gatherings_.at(client.wait->key).waiting[static_cast<std::size_t>(rank)] = nullptr;
  } else {
    const auto waiting = waiting_for_.find(client.wait->key);
    std::erase(waiting->second, &client);
    if (waiting->second.empty()) {
      waiting_for_.erase(waiting);
    }
  }
  waits_.erase(client.wait->deadline);
  client.wait.reset();
}

void StoreRequests::pass_deadlines(std::chrono::steady_clock::time_point now) {
  while (next_deadline() <= now) {
    StoreClient& client = *waits_.begin()->second;
    std::string missing;
    if (client.wait->rank != StoreWait::kNoRank) {
      for (const int rank : gatherings_.at(client.wait->key).rows.missing()) {
        put_number(missing, std::int32_t{rank});
      }
    }
    forget(client);
    reply_(client, protocol::Status::kTimeout, missing);
  }
}

std::chrono::steady_clock::time_point StoreRequests::next_deadline() const {
  return waits_.empty() ? std::chrono::steady_clock::time_point::max() : waits_.begin()->first;
}

}  // namespace dstrain
