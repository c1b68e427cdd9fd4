// MachineFacts: the facts about the machines of a run that "auto" values depend on. Facts, not
// choices: the launcher gathers them once and every rank is handed the same ones, so that all of
// them resolve a config alike, whatever differs between their hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dstrain {

/// For several ranks: what holds for each of them, and the least memory. The default assumes
/// nothing: a CPU without units for 16-bit products.
struct MachineFacts {
  bool cuda = false;             ///< ranks compute on GPUs
  std::string name;              ///< "NVIDIA H100 80GB HBM3"; of CPUs "AMD EPYC 9R45"; for origins
  bool multiplies_bf16 = false;  ///< in units made for it: GPUs from 8.0, AMX, AVX-512 BF16
  bool multiplies_f16 = false;   ///< in units made for it: GPUs from 7.0
  std::optional<std::int64_t> memory_bytes;  ///< that a rank may use; absent: not known

  bool operator==(const MachineFacts&) const = default;
};

}  // namespace dstrain
