#include "engine/comm/nccl.h"

#include <fmt/format.h>

#include "kernels/cuda/open_library.h"

namespace dstrain {

Nccl open_nccl() {
  void* const library = open_library("libnccl.so.2", "collectives between GPUs");
  Nccl nccl{};
  find_function(library, "ncclGetVersion", nccl.get_version);
  find_function(library, "ncclGetErrorString", nccl.error_string);
  // The oldest version that has all the functions below and accepts the config of a newer header.
  constexpr int kOldest = NCCL_VERSION(2, 18, 1);
  int version = 0;
  if (nccl.get_version(&version) != ncclSuccess || version < kOldest) {
    throw CudaError(fmt::format(
        "collectives between GPUs need NCCL 2.18.1 or later; libnccl.so.2 says it is version {}",
        version));
  }
  find_function(library, "ncclGetLastError", nccl.last_error);
  find_function(library, "ncclGetUniqueId", nccl.get_unique_id);
  find_function(library, "ncclCommInitRankConfig", nccl.comm_init_rank_config);
  find_function(library, "ncclCommGetAsyncError", nccl.comm_get_async_error);
  find_function(library, "ncclCommFinalize", nccl.comm_finalize);
  find_function(library, "ncclCommDestroy", nccl.comm_destroy);
  find_function(library, "ncclCommAbort", nccl.comm_abort);
  find_function(library, "ncclAllReduce", nccl.all_reduce);
  find_function(library, "ncclReduceScatter", nccl.reduce_scatter);
  find_function(library, "ncclAllGather", nccl.all_gather);
  find_function(library, "ncclBroadcast", nccl.broadcast);
  find_function(library, "ncclSend", nccl.send);
  find_function(library, "ncclRecv", nccl.receive);
  find_function(library, "ncclGroupStart", nccl.group_start);
  find_function(library, "ncclGroupEnd", nccl.group_end);
  return nccl;
}

}  // namespace dstrain
