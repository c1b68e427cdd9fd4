// The files of a trace. <output_dir>/traces/steps-20-24 has trace.info, written by rank 0, which
// says what the trace is of, and rank-00003.json.gz for each rank.
//
// A rank's file is in the format of Chrome's trace viewer ("Trace Event Format"), as PyTorch's
// profiler writes it: ui.perfetto.dev opens it, and Holistic Trace Analysis reads a folder of them.
// Times are on rank 0's clock. Each event is a line of its own, so that files of several ranks
// become one by taking their lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/comm/clock_alignment.h"
#include "engine/config/trace_config.h"
#include "kernels/core/trace_log.h"

namespace dstrain {

/// What one rank did in some steps.
struct RankTrace {
  int rank = 0;
  int world_size = 1;
  std::string host;
  std::string place;   ///< "data 1, tensor 0"; empty: it is alone
  std::string device;  ///< for people
  NumberSpan steps;
  ClockReading first;  ///< before the first step; the last is after the last one
  ClockReading last;
  std::vector<TraceLog::Track> tracks;
};

/// `at_ns` of the rank's clock in microseconds since rank 0 began to compare clocks: between the
/// two readings the offset changes evenly.
double microseconds_of(const RankTrace& trace, std::int64_t at_ns);

/// The bytes that leave a rank of a ring for each byte of a collective's whole buffer, as
/// nccl-tests' "busbw" counts them.
double bus_share(std::string_view op, int ranks);

/// The name of an operation in a trace, of the function that runs it: "norm_forward" of
/// "virtual void dstrain::CpuOps::norm_forward(const NormForward&, Stream&)".
std::string_view operation_name(std::string_view function);

std::string trace_text(const RankTrace& trace);

/// The folder of a trace in a run's.
std::filesystem::path trace_folder(const std::filesystem::path& output_dir,
                                   const NumberSpan& steps);
/// Not called .json: Holistic Trace Analysis takes every such file for a rank's.
inline constexpr const char* kTraceIndex = "trace.info";
std::string rank_file_name(int rank);

/// Writes a rank's file, which is whole as soon as it has its name. Throws StorageError.
void write_rank_trace(const std::filesystem::path& folder, const RankTrace& trace);

struct TraceIndex {
  NumberSpan steps;
  std::vector<int> ranks;
  int world_size = 1;
};
/// Throws StorageError; the second also where the file is no such index.
void write_trace_index(const std::filesystem::path& folder, const TraceIndex& index);
TraceIndex read_trace_index(const std::filesystem::path& folder);

/// The events of a rank's file, as lines of JSON. Throws StorageError.
std::vector<std::string> read_rank_events(const std::filesystem::path& file);
/// One file of the events of several. Throws StorageError.
void join_rank_traces(const std::filesystem::path& folder,
                      const TraceIndex& index,
                      const std::filesystem::path& output);

}  // namespace dstrain
