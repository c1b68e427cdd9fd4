// Accelerators by name: how much memory an estimate may use, and what prices a step by. For those
// who have none at hand yet; a run measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

struct Accelerator {
  std::string_view name;
  std::int64_t memory_bytes = 0;  ///< as its driver reports it, which is less than the name says
  double flops = 0.0;             ///< dense 16-bit matrix products with f32 sums, a second
  double link_bytes = 0.0;        ///< to the others of its machine, a second, each way
  bool multiplies_bf16 = true;    ///< compute capability 8.0 and later
};

/// In the order of their memory.
const std::vector<Accelerator>& accelerators();

/// The one that a driver names so ("NVIDIA H100 80GB HBM3"); nothing for names that are not known,
/// of those slower variants among them ("NVIDIA H100 PCIe").
std::optional<Accelerator> accelerator_of_model(std::string_view model);

/// What a rank may hold.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string name;                        ///< "80.00 GiB", "H100-80GB"
  std::optional<Accelerator> accelerator;  ///< where it was named
};

/// "80GiB", "80GB", "64000MiB", "85899345920", or an accelerator ("h100" for "H100-80GB"). Throws
/// ConfigError that lists what there is.
MemoryLimit parse_memory_limit(const std::string& text);

}  // namespace dstrain
