// CudaDevice and CudaStream on the emulated GPU: what they order, refuse and pass on. And that the
// emulation itself is as asynchronous and as strict as it says.
#include "kernels/cuda/cuda_device.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "kernels/core/stream_decorator.h"
#include "kernels/gpu_facts.h"
#include "tests/harness/skip.h"

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

TEST_CASE("what is copied to a GPU is what a pinned buffer holds when the copy is made", "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  Device& device = *backend.device;
  const DeviceMemory region = device.allocate(1, "a byte");
  const Tensor tensor(region.data(), DType::kU8, {1});
  const DeviceMemory pinned = device.allocate_host(1, "a pinned byte");
  auto* const host = static_cast<std::uint8_t*>(pinned.data());
  *host = 1;
  Gate gate(device.compute_stream());
  device.copy_from_host(host, tensor, device.compute_stream());
  *host = 2;  // too early
  gate.open();
  CHECK(byte_of(region, device) == 2);
}

TEST_CASE("as many GPUs are emulated as are asked for, each with memory of its own", "[cuda]") {
  setenv("DSTRAIN_EMULATED_GPUS", "2", 1);
  {
    const GpusHere here = look_at_gpus();
    REQUIRE(here.gpus.size() == 2);
    CHECK(here.gpus[1].model == "emulated GPU");
    CHECK(here.gpus[1].total_bytes == std::int64_t{1} << 30);
    CHECK_FALSE(here.driver.empty());
    CHECK(here.why_none.empty());
    const Backend first = make_cuda_backend(0);
    const Backend second = make_cuda_backend(1);
    const std::int64_t before = first.device->memory_info().available_bytes;
    const DeviceMemory region = second.device->allocate(1 << 20, "a region");
    CHECK(first.device->memory_info().available_bytes == before);
    CHECK(second.device->memory_info().available_bytes <= before - (1 << 20));
  }
  unsetenv("DSTRAIN_EMULATED_GPUS");
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses among the emulated GPUs as among real ones", "[cuda]") {
  setenv("DSTRAIN_EMULATED_GPUS", "3", 1);
  const std::vector<GpuFacts> all = look_at_gpus().gpus;
  REQUIRE(all.size() == 3);
  CHECK(all[0].uuid.starts_with("GPU-01000000-"));
  CHECK(all[2].bus_id == "0000:02:00.0");
  const auto uuids = [](const std::string& visible) {
    setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
    std::vector<std::string> found;
    for (const GpuFacts& gpu : look_at_gpus().gpus)
      found.push_back(gpu.uuid);
    return found;
  };
  using Uuids = std::vector<std::string>;
  CHECK(uuids("2,0") == Uuids{all[2].uuid, all[0].uuid});
  CHECK(uuids(all[1].uuid) == Uuids{all[1].uuid});
  CHECK(uuids("GPU-02") == Uuids{all[1].uuid});
  CHECK(uuids("1,7,0") == Uuids{all[1].uuid});  // as far as the first that there is not
  CHECK(uuids("").empty());
  setenv("CUDA_VISIBLE_DEVICES", "2", 1);
  const Backend only = make_cuda_backend(0, {.name = "cuda:2"});
  CHECK(only.device->identity() == all[2].uuid);
  CHECK_THAT(only.device->description(), Catch::StartsWith("cuda:2, emulated GPU"));
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

/// The signal that ends a child in which `act` is done; 0: none.
int signal_of(const std::function<void()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    (void)std::signal(SIGABRT, SIG_DFL);
    (void)std::signal(SIGSEGV, SIG_DFL);
    (void)close(STDERR_FILENO);
    act();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST_CASE("the host's memory is nothing for a GPU, nor a GPU's for the host", "[cuda]") {
  const Backend backend = make_cuda_backend(0);
  Device& device = *backend.device;
  const DeviceMemory region = device.allocate(64, "a tensor");
  const DeviceMemory pinned = device.allocate_host(64, "a pinned tensor");
  std::vector<float> pageable(16);
  const auto zero = [&](void* data) {
    return signal_of([&] {
      backend.ops->zero({data, DType::kF32, {16}}, device.compute_stream());
    });
  };
  const auto add = [&](void* data) {
    return signal_of([&] {
      const Tensor tensor(data, DType::kF32, {16});
      backend.ops->add(tensor, tensor, tensor, device.compute_stream());
    });
  };
  CHECK(zero(region.data()) == 0);
  CHECK(zero(pinned.data()) == 0);
  CHECK(zero(pageable.data()) == SIGABRT);
  CHECK(add(region.data()) == 0);
  CHECK(add(pageable.data()) == SIGABRT);

  const int key = pkey_alloc(0, 0);
  if (key < 0) {
    testing::skip("its second half: this processor has no memory protection keys");
    return;
  }
  pkey_free(key);
  CHECK(signal_of([&] { *static_cast<volatile char*>(region.data()) = 1; }) == SIGSEGV);
  CHECK(signal_of([&] { *static_cast<volatile char*>(pinned.data()) = 1; }) == 0);
}

}  // namespace
}  // namespace dstrain
