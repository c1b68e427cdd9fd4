#include "cmd/memory_check.h"

#include <catch2/catch.hpp>

#include "launcher/errors.h"

namespace dstrain {
namespace {

using Catch::Contains;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr int kRanks = 4;

LoadedConfig gpt2(const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load_config("configs/gpt2-124m.json", {.overrides = overrides});
  resolve_config(loaded, kRanks);
  return loaded;
}

void check(std::int64_t first_host, std::int64_t second_host) {
  const std::vector<HostMemory> hosts = {{"w0", 3, first_host}, {"w1", 1, second_host}};
  check_memory(gpt2, hosts, {.cuda = false, .threads = 1, .ranks_per_host = 3});
}

TEST_CASE("a host that is too small is refused with what would fit", "[cmd][launch]") {
  // 124 million parameters of 18 bytes, and activations: between 2 and 6 GiB a rank.
  CHECK_NOTHROW(check(18 * kGiB, 6 * kGiB));
  CHECK_THROWS_AS(check(6 * kGiB, 6 * kGiB), launcher::PreflightError);
  CHECK_THROWS_WITH(check(6 * kGiB, 6 * kGiB),
                    Contains("host w0 has 6.00 GiB of memory free, and its 3 ranks will take") &&
                        Contains("--no-memory-check") && Contains("--set "));
  CHECK_THROWS_WITH(check(18 * kGiB, 2 * kGiB),
                    Contains("host w1 has 2.00 GiB of memory free, and its rank will take"));
}

}  // namespace
}  // namespace dstrain
