// Accelerators by name: the memory that an estimate may use, and the rates that a step is priced
// by. They serve those who have none at hand yet; a run measures.
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

/// All accelerators, in the order of their memory.
const std::vector<Accelerator>& accelerators();

/// The accelerator that a driver calls by this name ("NVIDIA H100 80GB HBM3"); nothing for unknown
/// names, which include slower variants ("NVIDIA H100 PCIe").
std::optional<Accelerator> accelerator_of_model(std::string_view model);

/// The memory that a rank may hold.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string name;                        ///< "80.00 GiB", "H100-80GB"
  std::optional<Accelerator> accelerator;  ///< where it was named
};

/// "80GiB", "80GB", "64000MiB", "85899345920", or an accelerator ("h100" for "H100-80GB"). Throws
/// ConfigError that lists what there is.
MemoryLimit parse_memory_limit(const std::string& text);

/// "80GiB", "80GB", "64000MiB", "85899345920": bytes. Throws ConfigError.
std::int64_t parse_amount(const std::string& text);

}  // namespace dstrain
