#include "engine/train/rank_device.h"

#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/comm/device_rendezvous.h"
#include "engine/config/config_error.h"
#include "engine/train/host_name.h"
#include "engine/train/library_overhead.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// Refuses a plan that cannot fit, and warns about one that may not. How much other ranks on this
/// GPU hold is known only once they run, so each is granted its share of the whole.
void check_memory(const RunPlan& plan, const Device& device, int ranks) {
  const MemoryInfo memory = device.memory_info();
  const std::int64_t granted = ranks == 1 ? memory.available_bytes : memory.total_bytes / ranks;
  const std::string share =
      ranks == 1 ? "that are free" : fmt::format("that are the share of each of {} ranks", ranks);
  const std::int64_t planned = plan.memory.bytes();
  if (planned > granted) {
    throw ConfigError(
        fmt::format("this rank plans {}, more than the {} {} on {}: dstrain estimate-memory "
                    "with --device-memory says what would make it fit",
                    gib_text(planned), gib_text(granted), share, device.description()));
  }
  const std::int64_t overhead = total_bytes(cuda_library_overhead(plan));
  if (ranks == 1 && planned + overhead > granted) {
    spdlog::warn(
        "memory is tight: {} planned and up to {} for CUDA's libraries, of the {} {} on {}",
        gib_text(planned), gib_text(overhead), gib_text(granted), share, device.description());
  }
}

/// Each rank logs its own device; with many more ranks than fit on a screen, only at a more verbose
/// level.
void tell_device(int rank, int world_size, const Device& device) {
  constexpr int kShown = 64;
  spdlog::log(world_size <= kShown ? spdlog::level::info : spdlog::level::debug,
              "rank={} host={} gpu=\"{}\" uuid={}", rank, host_name(), device.description(),
              device.identity());
}

}  // namespace

CudaOptions cuda_options(const Config& config) {
  const TrainingConfig& training = config.training;
  const std::string& algorithms = training.matmul_algorithms;
  const std::filesystem::path of_the_run =
      std::filesystem::path(training.output_dir) / "matmul_algorithms.jsonl";
  return {.tf32 = training.tf32,
          .matmul_algorithms_file = algorithms == "untimed" ? ""
                                    : algorithms == "auto"  ? of_the_run.string()
                                                            : algorithms,
          .attention = training.attention,
          .graphs = training.cuda_graphs,
          .fp8 = config.fp8.enabled,
          .tell = [](const std::string& line) { spdlog::info("{}", line); }};
}

RankDevice make_rank_device(const Config& config,
                            const RunPlan& plan,
                            int threads,
                            Rendezvous& host,
                            const TrainOptions& options) {
  if (config.training.device != DeviceChoice::kCuda) {
    return {.backend = make_cpu_backend(threads), .rendezvous = nullptr};
  }
  const int rank = host.world_rank();
  const CudaDevices found = find_cuda_devices();
  if (found.names.empty()) {
    throw ConfigError(fmt::format(
        "training.device is \"cuda\", but for rank {} on {} {}: use \"cpu\" or \"auto\"", rank,
        host_name(), found.why_none));
  }
  CudaOptions cuda = cuda_options(config);
  cuda.name = options.gpu_name;
  RankDevice made{.backend = make_cuda_backend(options.gpu, cuda), .rendezvous = nullptr};
  check_memory(plan, *made.backend.device, options.ranks_on_gpu);
  tell_device(rank, host.world_size(), *made.backend.device);
  check(options.store != nullptr, "ranks on GPUs need a store to find each other by");
  made.rendezvous = make_device_rendezvous(host, *options.store, *made.backend.device,
                                           {.timeout = options.collective_timeout,
                                            .activity = options.activity,
                                            .security = plan.wire_security});
  return made;
}

}  // namespace dstrain
