// Order, events and failures of the CPU's streams.
#include "kernels/cpu/side_stream.h"

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <pthread.h>

#include "kernels/backend.h"

namespace dstrain {

TEST_CASE("a side stream runs its tasks one after another in a thread of its name",
          "[kernels][stream]") {
  SideStream stream("comm-stream-with-a-long-name");
  std::vector<int> order;
  std::string name(16, '\0');
  std::thread::id runner;
  stream.synchronize();  // the name is set by now or while the first task waits
  for (int i = 0; i < 100; ++i) {
    stream.enqueue([&order, i] { order.push_back(i); });
  }
  std::promise<void> named;
  stream.enqueue([&] {
    runner = std::this_thread::get_id();
    for (int tries = 0; tries < 1000; ++tries) {
      pthread_getname_np(pthread_self(), name.data(), name.size());
      if (name.starts_with("comm")) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  stream.synchronize();
  REQUIRE(order.size() == 100);
  for (int i = 0; i < 100; ++i) {
    CHECK(order[static_cast<std::size_t>(i)] == i);
  }
  CHECK(runner != std::this_thread::get_id());
  CHECK(std::string(name.c_str()) == "comm-stream-wit");
}

TEST_CASE("wait_until returns when its ticket has passed, not later", "[kernels][stream]") {
  SideStream stream("side");
  std::promise<void> gate;
  std::atomic<bool> first_done = false;
  stream.enqueue([&] { first_done = true; });
  const Event after_first = stream.record();
  stream.enqueue([opened = gate.get_future().share()] { opened.wait(); });
  stream.wait_until(after_first.ticket);  // would hang if it waited for the second task
  CHECK(first_done);
  gate.set_value();
  stream.synchronize();
}

TEST_CASE("work after wait(event) starts only when the event has passed", "[kernels][stream]") {
  SideStream producer("producer");
  SideStream consumer("consumer");
  std::promise<void> gate;
  int value = 0;
  int seen = -1;
  producer.enqueue([&, opened = gate.get_future().share()] {
    opened.wait();
    value = 7;
  });
  consumer.wait(producer.record());
  consumer.enqueue([&] { seen = value; });
  consumer.wait(consumer.record());  // its own event: ordered already, must not deadlock
  consumer.wait(Event{});            // passed already
  gate.set_value();
  consumer.synchronize();
  CHECK(seen == 7);
}

TEST_CASE("a failed task is reported by every later wait, and what follows it is dropped",
          "[kernels][stream]") {
  SideStream stream("side");
  bool ran = false;
  stream.enqueue([] {});
  const Event before = stream.record();
  stream.enqueue([] { throw std::runtime_error("the peer is gone"); });
  stream.enqueue([&] { ran = true; });
  CHECK_THROWS_WITH(stream.synchronize(), "the peer is gone");
  CHECK_THROWS_WITH(stream.synchronize(), "the peer is gone");
  CHECK_NOTHROW(stream.wait_until(before.ticket));
  CHECK_FALSE(ran);
}

TEST_CASE("a failure travels with events to other streams", "[kernels][stream]") {
  SideStream first("first");
  SideStream second("second");
  Backend backend = make_cpu_backend(1);
  bool ran = false;
  first.enqueue([] { throw std::runtime_error("disk full"); });
  const Event failed = first.record();
  second.wait(failed);
  second.enqueue([&] { ran = true; });
  CHECK_THROWS_WITH(second.synchronize(), "disk full");
  CHECK_THROWS_WITH(backend.device->compute_stream().wait(failed), "disk full");
  CHECK_FALSE(ran);
}

TEST_CASE("destroying a side stream lets its tasks finish", "[kernels][stream]") {
  int count = 0;
  {
    SideStream stream("side");
    for (int i = 0; i < 50; ++i) {
      stream.enqueue([&] { ++count; });
    }
  }
  CHECK(count == 50);
}

TEST_CASE("the compute stream runs at once in the caller's thread", "[kernels][stream]") {
  Backend backend = make_cpu_backend(1);
  Stream& stream = backend.device->compute_stream();
  std::thread::id runner;
  stream.enqueue([&] { runner = std::this_thread::get_id(); });
  CHECK(stream.is_inline());
  CHECK(runner == std::this_thread::get_id());
  CHECK(stream.record().stream == nullptr);
  CHECK_THROWS_WITH(stream.enqueue([] { throw std::runtime_error("now"); }), "now");
}

TEST_CASE("operations on a side stream happen in its order", "[kernels][stream]") {
  Backend backend = make_cpu_backend(1);
  const auto side = backend.device->make_side_stream("side");
  const DeviceMemory memory = backend.device->allocate(3 * 4 * 1000, "three tensors");
  const Tensor all{memory.data(), DType::kF32, {3, 1000}};
  const std::vector<float> ones(1000, 1.0F);
  std::vector<float> result(1000);
  std::promise<void> gate;
  side->enqueue([opened = gate.get_future().share()] { opened.wait(); });
  backend.device->copy_from_host(ones.data(), all.rows(0, 1), *side);
  backend.ops->add(all.rows(0, 1), all.rows(0, 1), all.rows(1, 2), *side);
  backend.ops->add(all.rows(1, 2), all.rows(0, 1), all.rows(2, 3), *side);
  backend.device->copy_to_host(all.rows(2, 3), result.data(), *side);
  CHECK(static_cast<const float*>(memory.data())[0] == 0.0F);  // nothing ran yet
  gate.set_value();
  side->synchronize();
  CHECK(result == std::vector<float>(1000, 3.0F));
}

}  // namespace dstrain
