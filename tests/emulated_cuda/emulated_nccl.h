// NCCL of the emulated GPUs, for ranks that are threads of this process. It is as unkind as the
// real one may be: every call is first in progress, and is on its stream only once its state has
// been queried, the first collective not before every member has called it, the first exchange of
// two ranks not before both have; sums are made in descending order of the ranks, a maximum loses a
// NaN; calls that do not match, and members that do not come, hang; a member's abort is invisible
// to the others; the second of two ranks on one GPU is refused. A call in a place where NCCL allows
// none ends the process.
#pragma once

#include <nccl.h>

namespace dstrain::emulated {

/// Number of communicators that are neither destroyed nor aborted.
int num_live_nccl_comms();
/// Sets the asynchronous error that the communicators of rank `rank` report from now on.
void set_nccl_async_error(int rank, ncclResult_t error);

/// From now on, calls of rank `rank` for collectives return only when it is aborted, as when a
/// waiting kernel has filled CUDA's queue.
void block_nccl_calls(int rank);

}  // namespace dstrain::emulated
