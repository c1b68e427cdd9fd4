// OffloadConfig: says what a run keeps outside the device's memory, as the user wrote it. It is
// part of config.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dstrain {

enum class OffloadTo : std::uint8_t {
  kNone,  ///< "none": it stays on the device
  kHost,  ///< "cpu": the host's memory; on a CPU that is the device's, so that nothing changes
  kDisk   ///< "nvme": a disk of the host's
};

/// "zero_optimization.offload_optimizer", "zero_optimization.offload_param" and "aio".
struct OffloadConfig {
  OffloadTo states = OffloadTo::kNone;  ///< offload_optimizer.device: masters and moments
  std::string states_path;              ///< offload_optimizer.nvme_path: a folder of every host
  /// offload_optimizer.ratio: the share of a rank's elements whose states leave the device, at
  /// least.
  double states_ratio = 1.0;
  std::int64_t state_buffers = 4;           ///< offload_optimizer.buffer_count
  OffloadTo parameters = OffloadTo::kNone;  ///< offload_param.device
  std::string parameters_path;              ///< offload_param.nvme_path: the same folder, or empty
  std::int64_t parameter_buffers = 4;       ///< offload_param.buffer_count
  /// The most elements that are updated at once; 0: as many as are planned.
  std::int64_t sub_group_size = 1'000'000'000;
  std::optional<std::int64_t> block_size;  ///< aio.block_size, bytes. Absent: measured at start
  std::optional<int> queue_depth;          ///< aio.queue_depth, blocks. Absent: measured at start

  bool operator==(const OffloadConfig&) const = default;
};

}  // namespace dstrain
