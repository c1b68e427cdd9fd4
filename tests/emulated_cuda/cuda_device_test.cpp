// CudaDevice and CudaStream on the emulated GPU, where work is done when its call returns: what
// they refuse and pass on, not what overlaps.
#include <stdexcept>

#include <catch2/catch.hpp>

#include "kernels/backend.h"
#include "kernels/core/stream_decorator.h"

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
      Catch::Contains("parameters needs 3221225472 bytes (3.00 GiB), 1.00 of 1.00 GiB "
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

}  // namespace
}  // namespace dstrain
