// NCCL of the emulated GPUs, for ranks that are threads of this process. As unkind as the real one
// may be: every call is in progress first and is on its stream only when it was asked after, the
// first collective not before every member has called it, the first exchange of two ranks not
// before both have; sums are made in descending order of the ranks, a maximum loses a NaN; calls
// that do not match, and members that do not come, hang; a member's abort is nothing that the
// others see; the second of two ranks on one GPU is refused. A call where NCCL allows none ends the
// process.
#pragma once

#include <nccl.h>

namespace dstrain::emulated {

/// Neither destroyed nor aborted.
int num_live_nccl_comms();
/// From now on, what the communicators of rank `rank` are asked for asynchronous errors.
void set_nccl_async_error(int rank, ncclResult_t error);

/// From now on, calls of rank `rank` for collectives come back only when it is aborted, as where a
/// kernel that waits has filled CUDA's queue.
void block_nccl_calls(int rank);

}  // namespace dstrain::emulated
