// Readings of a GPU through a library that answers as NVML does (fake_nvml.cpp).
#include "kernels/cuda/nvml.h"

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

TEST_CASE("a GPU's clocks, power, temperature and this process's memory are read", "[nvml]") {
  const DeviceReadings readings = Nvml("0000:3b:00.0").read();
  CHECK(readings.used_bytes == 12'345'678'901);
  CHECK(readings.compute_mhz == 1980.0);
  CHECK(readings.memory_mhz == 2619.0);
  CHECK(readings.watts == 650.5);
  CHECK(readings.celsius == 61.0);
  CHECK_FALSE(readings.utilization.has_value());  // this one does not tell
  CHECK_FALSE(readings.slowdown.power);
  CHECK(readings.slowdown.temperature);
  CHECK(readings.slowdown.hardware);
}

TEST_CASE("a GPU's memory is reported, whoever holds it", "[nvml]") {
  const auto memory = Nvml("0000:3b:00.0").memory();
  REQUIRE(memory.has_value());
  CHECK(memory->total_bytes == 85'520'809'984);
  CHECK(memory->available_bytes == 80'000'000'000);
  CHECK_FALSE(Nvml("0000:00:00.0").memory().has_value());
}

TEST_CASE("a GPU that the driver's library does not know has no readings", "[nvml]") {
  const DeviceReadings readings = Nvml("0000:00:00.0").read();
  CHECK(readings.used_bytes == 0);
  CHECK_FALSE(readings.compute_mhz.has_value());
  CHECK_FALSE(readings.watts.has_value());
}

}  // namespace
}  // namespace dstrain
