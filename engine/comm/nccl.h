// NCCL, opened at run time: machines without a GPU have none, so the program must not be linked
// with it.
#pragma once

#include <string>
#include <string_view>

#include <nccl.h>

namespace dstrain {

/// The functions that are used, under their own names.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;

  /// "NCCL 2.28.9"
  [[nodiscard]] std::string version() const;
  /// What NCCL says of a status, with its last words: "remote process exited … (socket closed)".
  [[nodiscard]] std::string describe(ncclResult_t status) const;
  /// Throws CudaError with the call's name where it failed. ncclInProgress is no failure.
  void check(ncclResult_t status, std::string_view call) const;
};

/// Opens the library beside the program (lib/), where the loader looks, or in the toolkit that the
/// program was built with. Throws CudaError, saying where it looked, or that what it found is too
/// old. It is never closed.
Nccl open_nccl();

}  // namespace dstrain
