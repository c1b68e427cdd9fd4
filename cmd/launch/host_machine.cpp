#include "cmd/launch/host_machine.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/memory_info.h"
#include "kernels/gpu_facts.h"

namespace dstrain {
namespace {

using launcher::GpuReport;

/// Less than a driver and an idle context take.
bool is_in_use(const GpuReport& gpu) {
  constexpr std::int64_t kIdleBytes = std::int64_t{2} << 30;
  return gpu.free_bytes >= 0 && gpu.total_bytes - gpu.free_bytes > kIdleBytes;
}

}  // namespace

launcher::HostAnswer gpus_here() {
  const GpusHere here = look_at_gpus();
  launcher::HostAnswer answer{.error = here.why_none, .driver = here.driver};
  for (const GpuFacts& gpu : here.gpus) {
    answer.gpus.push_back({.model = gpu.model,
                           .total_bytes = gpu.total_bytes,
                           .free_bytes = gpu.free_bytes.value_or(-1),
                           .capability = gpu.capability,
                           .uuid = gpu.uuid,
                           .bus_id = gpu.bus_id,
                           .unusable = gpu.unusable});
  }
  return answer;
}

launcher::ProcessorReport processor_here() {
  return {.model = processor_name(),
          .multiplies_bf16 = multiplies_bf16(),
          .memory_bytes = read_memory_info().total_bytes};
}

std::string describe_gpus(const std::vector<GpuReport>& gpus, const std::string& driver) {
  std::string text;
  for (auto next = gpus.begin(); next != gpus.end();) {
    const auto end = std::find_if(next, gpus.end(), [&](const GpuReport& gpu) {
      return gpu.model != next->model || gpu.total_bytes != next->total_bytes;
    });
    text += fmt::format("{} × {}, {}, ", end - next, next->model, size_text(next->total_bytes));
    const auto fullest = std::min_element(next, end, [](const GpuReport& a, const GpuReport& b) {
      return a.free_bytes < b.free_bytes;
    });
    if (is_in_use(*fullest)) {
      text += fmt::format("{} free on cuda:{}, ", size_text(fullest->free_bytes),
                          fullest - gpus.begin());
    }
    next = end;
  }
  return text + "driver " + driver;
}

std::optional<std::string> gpu_notice(const std::string& host, int ranks, std::size_t num_gpus) {
  if (num_gpus == 0 || ranks <= static_cast<int>(num_gpus)) return std::nullopt;
  return fmt::format(
      "{}: {} ranks share {} GPU{}: they take turns, and talk through the host's memory; with {} "
      "each has a "
      "GPU of its own",
      host, ranks, num_gpus, num_gpus == 1 ? "" : "s", num_gpus);
}

}  // namespace dstrain
