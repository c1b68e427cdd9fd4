// The cost for the store when the ranks of a group find each other: it is one process's memory, one
// thread and one network card for the whole job.
#include <atomic>
#include <chrono>

#include <catch2/catch.hpp>
#include <time.h>

#include "engine/comm/store.h"
#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

using namespace std::chrono_literals;

/// Counts requests and what they carry, both ways.
class CountingStore final : public Store {
 public:
  explicit CountingStore(Store& inner) : inner_(inner) {}
  void set(std::string_view key, std::string_view value) override {
    count(key.size() + value.size());
    inner_.set(key, value);
  }
  [[nodiscard]] std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    std::string value = inner_.get(key, timeout);
    count(key.size() + value.size());
    return value;
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    count(key.size());
    return inner_.add(key, amount);
  }
  [[nodiscard]] Column all_to_all(const AllToAll& call,
                                  std::chrono::milliseconds timeout) override {
    Column column = inner_.all_to_all(call, timeout);
    count(call.key.size() + call.agreed.size() + call.row.size() + column.entries.size());
    return column;
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] int requests() const { return requests_; }

 private:
  void count(std::size_t bytes) {
    bytes_ += static_cast<std::int64_t>(bytes);
    ++requests_;
  }
  Store& inner_;
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<int> requests_{0};
};

/// Processor time of this process, all threads.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST_CASE("a group of processes costs the store one request a rank and bytes by pairs of ranks",
          "[comm][store]") {
  for (const int size : {4, 16, 64}) {
    const double before = processor_seconds();
    const auto memory = make_memory_store();
    CountingStore store(*memory);
    run_threads(size, [&](int rank) {
      const auto rendezvous =
          make_process_rendezvous(rank, size, store, {.wire = wire_here(), .connect_timeout = 60s});
      const auto group = rendezvous->make_group("world", everyone(size));
      group->barrier();  // they have found each other
    });
    CHECK(store.requests() == size);
    // 52 bytes each way for a pair, and the numbers of the members. Whole lists for all would take
    // as many for each of size³.
    CHECK(store.bytes() <= 110 * size * size + 64 * size);
#ifdef NDEBUG
    // A connected rank sends at once. This checks that no thread spins until the receiver has a
    // place for the data: 64 ranks take 1.5 s, and 30 s where threads spin.
    CHECK(processor_seconds() - before < 8.0);
#endif
  }
}

}  // namespace
}  // namespace dstrain
