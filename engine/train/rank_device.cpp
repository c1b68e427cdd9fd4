#include "engine/train/rank_device.h"

#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/utsname.h>

#include "engine/comm/device_rendezvous.h"
#include "engine/spec/config_error.h"
#include "engine/train/library_overhead.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string host_name() {
  utsname names{};
  uname(&names);
  return names.nodename;
}

/// How many ranks of this host compute on the GPU of this one.
int sharers(const TrainOptions& options, int num_gpus) {
  const int before = options.local_rank / num_gpus;
  const int after = (options.local_size - 1 - options.local_rank) / num_gpus;
  return before + 1 + after;
}

void say_what_is_idle(const CudaDevices& found) {
  if (!found.names.empty()) {
    spdlog::info(
        "computing on the CPU; training.device \"auto\" does not take {} GPU{} of {} ({}) before "
        "training on it has been measured: set \"cuda\" to use {}",
        found.names.size(), found.names.size() == 1 ? "" : "s", host_name(), found.names.front(),
        found.names.size() == 1 ? "it" : "them");
  }
}

/// Refuses what cannot be, and warns of what may not. What others on this GPU hold is only known
/// once they are there, so each is granted its share of the whole.
void check_memory(const Config& config, const RunPlan& plan, const Device& device, int ranks) {
  const MemoryInfo memory = device.memory_info();
  const std::int64_t granted = ranks == 1 ? memory.available_bytes : memory.total_bytes / ranks;
  const std::string share =
      ranks == 1 ? "that are free" : fmt::format("that are the share of each of {} ranks", ranks);
  const std::int64_t planned = plan.memory.bytes();
  if (planned > granted) {
    throw ConfigError(fmt::format(
        "this rank plans {:.2f} GiB, more than the {:.2f} GiB {} on {}: dstrain estimate-memory "
        "with --device-memory says what would make it fit",
        static_cast<double>(planned) / kGiB, static_cast<double>(granted) / kGiB, share,
        device.description()));
  }
  const std::int64_t overhead = total_bytes(cuda_library_overhead(config, plan));
  if (ranks == 1 && planned + overhead > granted) {
    spdlog::warn(
        "memory is tight: {:.2f} GiB planned and up to {:.2f} GiB for CUDA's libraries, of the "
        "{:.2f} GiB {} on {}",
        static_cast<double>(planned) / kGiB, static_cast<double>(overhead) / kGiB,
        static_cast<double>(granted) / kGiB, share, device.description());
  }
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
  const int rank = host.world_rank();
  if (config.training.device != DeviceChoice::kCuda) {
    if (rank == 0 && config.training.device == DeviceChoice::kAuto) {
      say_what_is_idle(find_cuda_devices());
    }
    return {.backend = make_cpu_backend(threads), .rendezvous = nullptr};
  }
  const CudaDevices found = find_cuda_devices();
  if (found.names.empty()) {
    throw ConfigError(fmt::format(
        "training.device is \"cuda\", but for rank {} on {} {}: use \"cpu\" or \"auto\"", rank,
        host_name(), found.why_none));
  }
  const auto num_gpus = static_cast<int>(found.names.size());
  const int ranks_on_gpu = sharers(options, num_gpus);
  if (rank == 0 && options.local_size > num_gpus) {
    spdlog::warn("{} ranks of {} share {} GPU{}: they take turns, and talk through the host",
                 options.local_size, host_name(), num_gpus, num_gpus == 1 ? "" : "s");
  }
  RankDevice made{.backend = make_cuda_backend(options.local_rank % num_gpus, cuda_options(config)),
                  .rendezvous = nullptr};
  check_memory(config, plan, *made.backend.device, ranks_on_gpu);
  check(options.store != nullptr, "ranks on GPUs need a store to find each other by");
  made.rendezvous =
      make_device_rendezvous(host, *options.store, *made.backend.device,
                             {.timeout = options.collective_timeout, .activity = options.activity});
  return made;
}

}  // namespace dstrain
