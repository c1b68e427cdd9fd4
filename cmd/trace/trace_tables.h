// Tables of what one rank did in the steps of a trace: its transfers, as DeepSpeed's comms_logger
// sums them up, the parts of its model, as its flops_profiler does, and its operations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cmd/runs/run_overview.h"

namespace dstrain {

/// Collectives of one kind and size.
struct TransferRow {
  std::string op;
  std::string purpose;
  std::string group;
  int ranks = 0;
  std::int64_t bytes = 0;  ///< of the whole buffer, of each
  std::int64_t count = 0;
  double seconds = 0.0;  ///< of all; waits for ranks that come later are part of it

  /// GB/s: the buffer's bytes over the time, and what each link of a ring carries (nccl-tests).
  [[nodiscard]] double algorithm_rate() const;
  [[nodiscard]] double bus_rate() const;
};

/// A unit of the model: the embedding, a block, the head.
struct UnitRow {
  std::string name;
  double forward = 0.0;  ///< seconds of a step
  double backward = 0.0;
  double flops = 0.0;  ///< of a step on this rank, forward and backward; 0: not known
};

/// An operation, or a kernel of a GPU, by its name and sizes; transfers apart.
struct OperationRow {
  std::string name;
  std::string sizes;   ///< "1024×3072×768", m×n×k of a product; empty: not told
  double count = 0.0;  ///< of a step, as all below
  double seconds = 0.0;
  double flops = 0.0;  ///< 0: not known
  double bytes = 0.0;  ///< that must be read and written at least; 0: not known
};

struct TraceTables {
  int rank = 0;
  std::int64_t steps = 0;
  double step_seconds = 0.0;             ///< mean
  std::vector<TransferRow> transfers;    ///< those that take longest first
  std::vector<UnitRow> units;            ///< in the order of the model
  std::vector<OperationRow> operations;  ///< those of steps; those that take longest first
};

/// Reads a rank's file in the folder of a trace. Throws StorageError.
TraceTables tables_of(const std::filesystem::path& folder, int rank);
/// Adds what each unit computes, by the run's config and layout, where these can be read.
void add_flops(const RunOverview& run, TraceTables& tables);

std::string to_text(const TraceTables& tables);
/// One object, with a line end.
std::string to_json_text(const TraceTables& tables);

}  // namespace dstrain
