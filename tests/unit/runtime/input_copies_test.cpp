// What a GPU takes to the host's memory and brings back: the same bits, each input once.
#include "engine/runtime/input_copies.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/backend.h"

namespace dstrain {
namespace {

/// A CPU that counts what comes from the host.
class CountingDevice final : public Device {
 public:
  int brought = 0;

  [[nodiscard]] DeviceKind kind() const override { return cpu().kind(); }
  [[nodiscard]] std::string description() const override { return cpu().description(); }
  [[nodiscard]] std::string model() const override { return cpu().model(); }
  [[nodiscard]] std::string identity() const override { return cpu().identity(); }
  [[nodiscard]] MemoryInfo memory_info() const override { return cpu().memory_info(); }
  [[nodiscard]] std::optional<DeviceReadings> readings() override { return cpu().readings(); }
  [[nodiscard]] DeviceMemory allocate(std::int64_t bytes, const std::string& what) override {
    return cpu().allocate(bytes, what);
  }
  [[nodiscard]] DeviceMemory allocate_host(std::int64_t bytes, const std::string& what) override {
    return cpu().allocate_host(bytes, what);
  }
  void copy_from_host(const void* host, Tensor device, Stream& stream) override {
    brought += 1;
    cpu().copy_from_host(host, device, stream);
  }
  void copy_to_host(ConstTensor device, void* host, Stream& stream) override {
    cpu().copy_to_host(device, host, stream);
  }
  void copy(ConstTensor from, Tensor to, Stream& stream) override { cpu().copy(from, to, stream); }
  [[nodiscard]] Stream& compute_stream() override { return cpu().compute_stream(); }
  [[nodiscard]] std::unique_ptr<Stream> make_side_stream(const std::string& name) override {
    return cpu().make_side_stream(name);
  }

 private:
  [[nodiscard]] Device& cpu() const { return *backend_.device; }

  Backend backend_ = make_cpu_backend(1);
};

/// A block and a micro-batch.
using Input = std::pair<int, int>;

struct Outcome {
  int brought = 0;
  bool same_bits = true;
};

/// Takes the inputs in one order and brings them in the other, as often as steps go by.
Outcome take_and_bring(const std::vector<Input>& forward,
                       const std::vector<Input>& backward,
                       int steps) {
  constexpr std::int64_t kNumbers = 64;
  constexpr int kSlots = 8;
  CountingDevice device;
  Stream& compute = device.compute_stream();
  InputCopies copies(device);
  std::vector<float> stream(kNumbers);
  std::vector<std::vector<float>> places(2, stream);
  std::vector<std::vector<float>> host(forward.size() * kSlots, stream);
  const auto tensor = [&](std::vector<float>& of) {
    return Tensor(of.data(), DType::kF32, Shape{kNumbers});
  };
  const InputCopies::Places both{tensor(places[0]), tensor(places[1])};
  const auto kept = [&](const Input& input) {
    return InputCopies::Kept{
        .buffer = input.first,
        .slot = input.second,
        .host = tensor(host[static_cast<std::size_t>(input.first * kSlots + input.second)])};
  };
  const auto value = [](const Input& input, int step) {
    return static_cast<float>(100 * step + 10 * input.first + input.second);
  };
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    for (const Input& input : forward) {
      stream.assign(kNumbers, value(input, step));
      copies.take(kept(input), tensor(stream), both, compute);
    }
    for (std::size_t i = 0; i < backward.size(); ++i) {
      copies.bring_soon(kept(backward[i]), both, compute);
      if (i + 1 < backward.size()) copies.bring_soon(kept(backward[i + 1]), both, compute);
      const ConstTensor there = copies.bring(kept(backward[i]), both, compute);
      device.copy(there, tensor(stream), compute);
      outcome.same_bits =
          outcome.same_bits && stream == std::vector<float>(kNumbers, value(backward[i], step));
    }
  }
  copies.synchronize();
  outcome.brought = device.brought;
  return outcome;
}

TEST_CASE("inputs come back once each, micro-batch by micro-batch and block by block",
          "[runtime][recompute]") {
  constexpr int kBlocks = 5;
  constexpr int kMicroBatches = 3;
  std::vector<Input> forward;
  std::vector<Input> backward;
  for (int block = 0; block < kBlocks; ++block) {
    forward.emplace_back(block, 0);
    backward.emplace_back(kBlocks - 1 - block, 0);
  }
  // The last two are still in their places.
  const Outcome one = take_and_bring(forward, backward, 2);
  CHECK(one.same_bits);
  CHECK(one.brought == 2 * (kBlocks - 2));

  forward.clear();
  backward.clear();
  for (int block = 0; block < kBlocks; ++block) {
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
      forward.emplace_back(block, micro_batch);
      backward.emplace_back(kBlocks - 1 - block, micro_batch);
    }
  }
  // The last two are not those that are wanted first.
  const Outcome all = take_and_bring(forward, backward, 2);
  CHECK(all.same_bits);
  CHECK(all.brought == 2 * kBlocks * kMicroBatches);
}

}  // namespace
}  // namespace dstrain
