// Host machine: what a host says of its GPUs and its processor, the same for this machine and for
// those that an agent answers for.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/agent_protocol.h"
#include "launcher/agent/host_question.h"

namespace dstrain {

/// The GPUs of this machine as a rank started from here would see them; `error` says why there are
/// none.
launcher::HostAnswer gpus_here();
launcher::ProcessorReport processor_here();

/// "8 × NVIDIA H100 80GB HBM3, 79.1 GiB, driver 13.0"; what the fullest has free, where others use
/// it.
std::string describe_gpus(const std::vector<launcher::GpuReport>& gpus, const std::string& driver);

/// A notice if ranks share GPUs, which they were allowed to do and which is slow.
std::optional<std::string> gpu_notice(const std::string& host, int ranks, std::size_t num_gpus);

}  // namespace dstrain
