// Work on the emulated GPU recorded in graphs: replayed it does what it did when it was enqueued,
// on what its operands hold then.
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_graph_replay.h"

namespace dstrain {
namespace {

constexpr std::int64_t kSize = 100;

struct Fixture {
  Backend backend = make_cuda_backend(0);
  Device& device = *backend.device;
  Stream& stream = device.compute_stream();
  DeviceMemory x_memory = device.allocate(kSize * 4, "x");
  DeviceMemory y_memory = device.allocate(kSize * 4, "y");
  DeviceMemory total_memory = device.allocate(8, "total");
  Tensor x{x_memory.data(), DType::kF32, {kSize}};
  Tensor y{y_memory.data(), DType::kF32, {kSize}};
  Tensor total{total_memory.data(), DType::kF64, {1}};
  CudaGraphReplay graphs{0};
  int calls = 0;

  void set_x(float value) {
    const std::vector<float> values(kSize, value);
    device.copy_from_host(values.data(), x, stream);
    stream.synchronize();
  }
  /// y += x, total = Σ y: kernels, and scratch of an operation.
  void work() {
    ++calls;
    backend.ops->add_scaled(x, 1.0F, y, Write::kAdd, stream);
    backend.ops->sum(y, total, Write::kOverwrite, stream);
  }
  void run(const GraphKey& key) {
    graphs.run(key, stream, [this] { work(); });
  }
  double read_total() {
    double value = 0.0;
    device.copy_to_host(total, &value, stream);
    stream.synchronize();
    return value;
  }
};

TEST_CASE("a graph repeats its work on what its operands hold by then", "[graph]") {
  Fixture f;
  double expected = 0.0;
  for (int i = 1; i <= 6; ++i) {
    f.set_x(static_cast<float>(i));
    f.run({.layer = &f});
    expected += i * static_cast<double>(kSize);
    CHECK(f.read_total() == expected);
  }
  CHECK(f.calls == 2);  // run, recorded; then replayed
  CHECK(f.graphs.num_graphs() == 1);
}

TEST_CASE("other operands are another graph", "[graph]") {
  Fixture f;
  f.set_x(1.0F);
  const GraphKey one{.layer = &f, .slot = 0};
  const std::vector<GraphKey> others{{.layer = &f, .slot = 1},
                                     {.layer = &f, .pass = Pass::kBackward},
                                     {.layer = &f, .parameters = &f},
                                     {.layer = &f, .gradients = &f},
                                     {.layer = &f, .write = Write::kAdd},
                                     {.layer = &f.x}};
  f.run(one);
  f.run(one);
  f.run(one);
  CHECK(f.calls == 2);
  for (const GraphKey& other : others) {
    const int before = f.calls;
    f.run(other);
    CHECK(f.calls == before + 1);
  }
}

TEST_CASE("work that throws while it is recorded leaves the stream as it was", "[graph]") {
  Fixture f;
  f.set_x(1.0F);
  const GraphKey key{.layer = &f};
  f.run(key);
  CHECK_THROWS_WITH(f.graphs.run(key, f.stream,
                                 [&] {
                                   f.work();
                                   throw std::runtime_error("no");
                                 }),
                    "no");
  CHECK(f.read_total() == kSize);  // what was recorded was not done
  f.run(key);
  f.run(key);
  CHECK(f.read_total() == 3.0 * kSize);
}

TEST_CASE("what CUDA refuses while a graph is recorded is an error, and nothing of it stays",
          "[graph]") {
  Fixture f;
  f.set_x(1.0F);
  const auto side = f.device.make_side_stream("copies");
  (void)side->record();
  double expected = 0.0;
  const auto refused = [&](const GraphKey& key, auto&& what) {
    f.run(key);
    CHECK_THROWS_AS(f.graphs.run(key, f.stream,
                                 [&] {
                                   f.work();
                                   what();
                                 }),
                    CudaError);
    f.run(key);  // recorded anew
    expected += 2.0 * kSize;
    CHECK(f.read_total() == expected);
  };
  refused({.slot = 1}, [&] { (void)f.device.allocate(64, "a region"); });
  refused({.slot = 2}, [&] { (void)f.device.allocate_host(64, "a region"); });
  refused({.slot = 3}, [&] { side->synchronize(); });
  refused({.slot = 4}, [&] { (void)side->record(); });  // it asks for those before
}

TEST_CASE("the host's tasks, events and waits do not get into a graph", "[graph]") {
  Fixture f;
  const auto side = f.device.make_side_stream("copies");
  const Event event = side->record();
  const auto refused = [&](const GraphKey& key, auto&& what) {
    f.graphs.run(key, f.stream, [] {});
    CHECK_THROWS_AS(f.graphs.run(key, f.stream, what), InternalError);
  };
  refused({.slot = 1}, [&] { f.stream.enqueue([] {}); });
  refused({.slot = 2}, [&] { (void)f.stream.record(); });
  refused({.slot = 3}, [&] { f.stream.wait(event); });
  refused({.slot = 4}, [&] { f.stream.synchronize(); });
  f.set_x(2.0F);
  f.run({.layer = &f});
  CHECK(f.read_total() == 2.0 * kSize);
}

}  // namespace
}  // namespace dstrain
