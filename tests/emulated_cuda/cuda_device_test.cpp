// CudaDevice and CudaStream on the emulated GPU: what they order, refuse and pass on.
#include "kernels/cuda/cuda_device.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <thread>

#include <catch2/catch.hpp>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/core/stream_decorator.h"
#include "kernels/gpu_facts.h"

namespace dstrain {
namespace {

TEST_CASE("a GPU's memory comes zeroed, and errors name the region and what is free", "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  Device& device = *backend.device;
  const DeviceMemory region = device.allocate(1000, "gradients");
  std::vector<std::uint8_t> host(1000, 7);
  device.copy_to_host({region.data(), DType::kU8, {1000}}, host.data(), device.compute_stream());
  device.compute_stream().synchronize();
  CHECK(host == std::vector<std::uint8_t>(1000, 0));
  CHECK(device.allocate(0, "nothing").data() == nullptr);
  CHECK_THROWS_AS(device.allocate(std::int64_t{3} << 30, "parameters"), OutOfMemory);
  CHECK_THROWS_WITH(
      device.allocate(std::int64_t{3} << 30, "parameters"),
      Catch::Contains("parameters needs 3221225472 bytes (3.00 GiB), 1.00 GiB of 1.00 GiB "
                      "are free on cuda:0"));
}

TEST_CASE("there is no device beyond those that are there", "[cuda]") {
  CHECK_THROWS_WITH(make_cuda_backend(1), "there is no device cuda:1; this process sees 1");
  CHECK_THROWS_WITH(make_cuda_backend(-1), "there is no device cuda:-1; this process sees 1");
}

TEST_CASE("events order streams, and old ones have passed", "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  Stream& compute = backend.device->compute_stream();
  const std::unique_ptr<Stream> side = backend.device->make_side_stream("copies");
  const Event first = side->record();
  for (int i = 0; i < 100; ++i) {
    const Event event = side->record();
    CHECK(event.ticket == first.ticket + static_cast<std::uint64_t>(i) + 1);
    compute.wait(event);
  }
  side->wait_until(first.ticket);
  compute.wait(first);
  compute.wait({});
  CHECK_THROWS_AS(side->wait_until(1000), InternalError);
}

TEST_CASE("a task that throws is rethrown by waits, and later tasks are dropped", "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  Stream& compute = backend.device->compute_stream();
  const std::unique_ptr<Stream> side = backend.device->make_side_stream("copies");
  bool ran = false;
  side->enqueue([] { throw std::runtime_error("the disk is full"); });
  side->enqueue([&] { ran = true; });
  CHECK_THROWS_WITH(side->synchronize(), "the disk is full");
  CHECK_THROWS_WITH(side->wait_until(side->record().ticket), "the disk is full");
  CHECK_FALSE(ran);
  compute.wait(side->record());
  CHECK_THROWS_WITH(compute.synchronize(), "the disk is full");
}

TEST_CASE("a device that was given up fails every wait of every stream, for good", "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  auto& device = dynamic_cast<CudaDevice&>(*backend.device);
  Stream& compute = device.compute_stream();
  const std::unique_ptr<Stream> side = device.make_side_stream("copies");
  const Event event = side->record();
  CHECK(device.failure() == nullptr);
  std::jthread([&] {
    device.fail(std::make_exception_ptr(std::runtime_error("a peer did not come")));
    device.fail(std::make_exception_ptr(std::runtime_error("so another one left")));
  }).join();
  for (int again = 0; again < 2; ++again) {
    CHECK_THROWS_WITH(compute.synchronize(), "a peer did not come");
    CHECK_THROWS_WITH(side->synchronize(), "a peer did not come");
    CHECK_THROWS_WITH(side->wait_until(event.ticket), "a peer did not come");
  }
}

/// Passes everything on.
class Decorated final : public StreamDecorator {
 public:
  explicit Decorated(Stream& inner) : inner_(inner) {}
  [[nodiscard]] Stream& inner() override { return inner_; }
  [[nodiscard]] bool is_inline() const override { return inner_.is_inline(); }
  void enqueue(std::function<void()> task) override { inner_.enqueue(std::move(task)); }
  [[nodiscard]] Event record() override {
    const Event event = inner_.record();
    return {.stream = this, .ticket = event.ticket};
  }
  void wait(const Event& event) override { inner_.wait(event); }
  void wait_until(std::uint64_t ticket) override { inner_.wait_until(ticket); }
  void synchronize() override { inner_.synchronize(); }

 private:
  Stream& inner_;
};

TEST_CASE("operations find a GPU's stream under its decorators, and refuse others", "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  const Backend processor = make_cpu_backend(1);
  Device& device = *backend.device;
  Decorated once(device.compute_stream());
  Decorated twice(static_cast<Stream&>(once));
  const DeviceMemory region = device.allocate(64, "a tensor");
  const Tensor tensor(region.data(), DType::kF32, {16});
  backend.ops->zero(tensor, twice);
  device.make_side_stream("copies")->wait(twice.record());
  CHECK_THROWS_WITH(backend.ops->zero(tensor, processor.device->compute_stream()),
                    Catch::Contains("a stream that is not of CUDA"));
}

/// Holds up a stream until it is opened.
class Gate {
 public:
  explicit Gate(Stream& stream) {
    stream.enqueue([this] { open_.wait(false); });
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_ = false;
};

/// Seconds of processor time that this thread takes while `wait` stands still for 0.3 s.
double processor_seconds_of(Stream& stream, const std::function<void()>& wait) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  Gate gate(stream);
  std::jthread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{300});
    gate.open();
  });
  const double before = now();
  wait();
  return now() - before;
}

TEST_CASE("a thread that waits for a GPU leaves its core to others", "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  Stream& compute = backend.device->compute_stream();
  CHECK(processor_seconds_of(compute, [&] { compute.synchronize(); }) < 0.05);
  CHECK(processor_seconds_of(compute, [&] { compute.wait_until(compute.record().ticket); }) < 0.05);
}

std::uint8_t byte_of(const DeviceMemory& region, Device& device) {
  std::uint8_t byte = 0;
  device.copy_to_host({region.data(), DType::kU8, {1}}, &byte, device.compute_stream());
  device.compute_stream().synchronize();
  return byte;
}

TEST_CASE("a stream continues beside another, and behind it where it waits for its event",
          "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  Device& device = *backend.device;
  Stream& compute = device.compute_stream();
  const std::unique_ptr<Stream> side = device.make_side_stream("copies");
  const DeviceMemory region = device.allocate(1, "a byte");
  const Tensor tensor(region.data(), DType::kU8, {1});
  const std::uint8_t written = 5;
  Gate gate(*side);
  device.copy_from_host(&written, tensor, *side);
  CHECK(byte_of(region, device) == 0);  // nobody waits: the old number

  compute.wait(side->record());
  std::uint8_t seen = 0;
  device.copy_to_host(tensor, &seen, compute);
  gate.open();
  compute.synchronize();
  CHECK(seen == 5);
}

TEST_CASE("the GPUs that this process sees are told, and each is one device", "[cuda]") {
  setenv("DSTRAIN_EMULATED_GPUS", "3", 1);
  setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
  {
    const GpusHere here = look_at_gpus();
    REQUIRE(here.gpus.size() == 2);
    CHECK(here.gpus[0].model == "emulated GPU");
    CHECK(here.gpus[0].total_bytes == std::int64_t{1} << 30);
    CHECK(here.gpus[0].bus_id == "0000:02:00.0");
    CHECK(here.gpus[1].uuid.starts_with("GPU-01000000-"));
    CHECK_FALSE(here.driver.empty());
    CHECK(here.why_none.empty());
    const Backend first = make_cuda_backend(0, {.name = "cuda:2"});
    const Backend second = make_cuda_backend(1);
    CHECK(first.device->identity() == here.gpus[0].uuid);
    CHECK_THAT(first.device->description(), Catch::StartsWith("cuda:2, emulated GPU"));
    const std::int64_t before = first.device->memory_info().available_bytes;
    const DeviceMemory region = second.device->allocate(1 << 20, "a region");
    CHECK(first.device->memory_info().available_bytes == before);
    CHECK(second.device->memory_info().available_bytes <= before - (1 << 20));
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("DSTRAIN_EMULATED_GPUS");
}

TEST_CASE("a GPU that is older than what is built is not usable", "[cuda]") {
  CHECK(look_at_gpus().gpus.front().unusable.empty());
  setenv("DSTRAIN_EMULATED_CAPABILITY", "75", 1);
  const std::string why = "compute capability 7.5, and this dstrain is built for 8.0 and later";
  CHECK_THAT(look_at_gpus().gpus.front().unusable, Catch::EndsWith(why));
  CHECK_THROWS_WITH(make_cuda_backend(0),
                    Catch::StartsWith("cuda:0, emulated GPU") && Catch::EndsWith(why));
  unsetenv("DSTRAIN_EMULATED_CAPABILITY");
}

TEST_CASE("products in 8 bits are refused at once where a GPU has none", "[cuda][fp8]") {
  CHECK_NOTHROW(make_cuda_backend(0, {.fp8 = true}));
  setenv("DSTRAIN_EMULATED_CAPABILITY", "80", 1);
  CHECK_NOTHROW(make_cuda_backend(0));
  CHECK_THROWS_WITH(make_cuda_backend(0, {.fp8 = true}),
                    Catch::Contains("compute capability 8.0") && Catch::Contains("from 8.9 on") &&
                        Catch::Contains("fp8.enabled"));
  unsetenv("DSTRAIN_EMULATED_CAPABILITY");
}

}  // namespace
}  // namespace dstrain
