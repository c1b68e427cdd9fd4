// Looks at the GPUs and the processor of a host. This machine and those that an agent answers for
// are looked at in the same way.
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

/// "8 × NVIDIA H100 80GB HBM3, 79.1 GiB, driver 13.0"; also says what the fullest GPU has free
/// where others use it.
std::string describe_gpus(const std::vector<launcher::GpuReport>& gpus, const std::string& driver);

/// Returns a notice if ranks share GPUs, which is allowed then, and slow.
std::optional<std::string> gpu_notice(const std::string& host, int ranks, std::size_t num_gpus);

}  // namespace dstrain
