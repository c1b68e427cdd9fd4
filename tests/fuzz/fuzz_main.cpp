// Hands libFuzzer's inputs to the target that DSTRAIN_FUZZ_TARGET names.
#include <cstdint>
#include <cstdlib>

#include <spdlog/spdlog.h>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const dstrain::fuzz::FuzzTarget& target = [] -> const dstrain::fuzz::FuzzTarget& {
    spdlog::set_level(spdlog::level::off);
    const char* const name = std::getenv("DSTRAIN_FUZZ_TARGET");
    return dstrain::fuzz::target_named(name == nullptr ? "" : name);
  }();
  target.run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
