#include <charconv>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include <fmt/format.h>

#include "engine/comm/communicator.h"
#include "engine/comm/row_exchange.h"
#include "engine/comm/store.h"

namespace dstrain {
namespace {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(std::string(key), std::string(value));
    changed_.notify_all();
  }

  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    const auto is_set = [&] { return values_.find(key) != values_.end(); };
    if (!changed_.wait_for(lock, timeout, is_set)) {
      throw Timeout(fmt::format("key \"{}\" was not set within {:.3g} s (store in this process)",
                                key, std::chrono::duration<double>(timeout).count()));
    }
    return values_.find(key)->second;
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    const std::lock_guard lock(mutex_);
    std::string& text = values_.try_emplace(std::string(key), "0").first->second;
    std::int64_t sum = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), sum);
    check(parsed.ec == std::errc() && parsed.ptr == text.data() + text.size(),
          "add to key \"{}\", which holds \"{}\" and not a number", key, text);
    sum += amount;
    text = std::to_string(sum);
    changed_.notify_all();
    return sum;
  }

  Column all_to_all(const AllToAll& call, std::chrono::milliseconds timeout) override {
    call.validate();
    std::unique_lock lock(mutex_);
    std::shared_ptr<RowExchange>& entered =
        exchanges_.try_emplace(std::string(call.key), nullptr).first->second;
    if (entered == nullptr) {
      entered = std::make_shared<RowExchange>(call);
    }
    const std::shared_ptr<RowExchange> rows = entered;
    rows->bring(call);
    if (rows->complete()) {
      exchanges_.erase(exchanges_.find(call.key));
    }
    changed_.notify_all();
    const bool over = changed_.wait_for(
        lock, timeout, [&] { return rows->complete() || !rows->failure().empty(); });
    check(rows->failure().empty(), "all-to-all \"{}\": {}", call.key, rows->failure());
    return over ? Column{.entries = rows->column(call.rank), .missing = {}}
                : Column{.entries = "", .missing = rows->missing()};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
  // Shared with callers that have yet to take their column when the exchange is removed here.
  std::map<std::string, std::shared_ptr<RowExchange>, std::less<>> exchanges_;
};

}  // namespace

std::unique_ptr<Store> make_memory_store() {
  return std::make_unique<MemoryStore>();
}

}  // namespace dstrain
