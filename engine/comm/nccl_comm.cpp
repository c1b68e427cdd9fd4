#include "engine/comm/nccl_comm.h"

#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/comm/block_signals.h"
#include "kernels/core/check.h"
#include "kernels/cuda/cuda_check.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

std::string_view text_of(const ncclUniqueId& id) {
  return {id.internal, sizeof(id.internal)};
}

}  // namespace

NcclComm::NcclComm(Nccl nccl,
                   const NcclGroup& group,
                   NcclNotices& notices,
                   std::chrono::milliseconds connect_timeout)
    : nccl_(nccl) {
  const BlockSignals block;  // NCCL starts threads
  try {
    connect(group, notices, connect_timeout);
  } catch (...) {
    abort();
    throw;
  }
}

NcclComm::~NcclComm() {
  abort();
}

/// The first member's NCCL makes it: an address that the others' call.
ncclUniqueId NcclComm::agree_on_id(const NcclGroup& group,
                                   NcclNotices& notices,
                                   std::chrono::milliseconds timeout) const {
  ncclUniqueId id{};
  if (group.rank == 0) {
    try {
      nccl_.check(nccl_.get_unique_id(&id), "ncclGetUniqueId");
    } catch (const CudaError& failure) {
      notices.refuse_id(failure.what());
      throw;
    }
    notices.give_id(text_of(id));
    return id;
  }
  const std::string text = notices.take_id(timeout);
  check(text.size() == sizeof(id.internal), "an id of NCCL's of {} bytes in the store",
        text.size());
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

void NcclComm::connect(const NcclGroup& group,
                       NcclNotices& notices,
                       std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  notices.tell_arrival();
  const ncclUniqueId id = agree_on_id(group, notices, timeout);
  const auto size = static_cast<int>(group.members.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResult_t status = nccl_.comm_init_rank_config(&comm_, size, id, group.rank, &config);
  if (status == ncclSuccess || status == ncclInProgress) {
    status = wait(deadline);
  }
  if (status == ncclSuccess) {
    return;
  }
  const std::string where = fmt::format("forming group \"{}\" on rank {} of {} over {}", group.name,
                                        group.rank, size, nccl_.version());
  if (status == ncclInProgress) {
    const std::vector<int> missing = notices.missing();
    throw Timeout(fmt::format(
        "{}: {} within {:.3g} s{}", where,
        missing.empty()
            ? "all members came, but could not connect"
            : fmt::format("rank(s) {} of the job did not join", fmt::join(missing, ", ")),
        std::chrono::duration<double>(timeout).count(),
        missing.empty() ? "; NCCL_SOCKET_IFNAME names the network interface that NCCL should use, "
                          "NCCL_DEBUG=INFO has it say what it does"
                        : ""));
  }
  if (status == ncclRemoteError || status == ncclSystemError) {
    throw PeerLost(fmt::format("{}: {}", where, nccl_.describe(status)));
  }
  throw CudaError(fmt::format("{}: {}", where, nccl_.describe(status)));
}

ncclResult_t NcclComm::async_error() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    return ncclInvalidUsage;
  }
  ncclResult_t state = ncclSuccess;
  const ncclResult_t status = nccl_.comm_get_async_error(comm_, &state);
  return status == ncclSuccess ? state : status;
}

// Mostly in progress for some microseconds; while peers connect, for as long as they take.
ncclResult_t NcclComm::wait(Clock::time_point deadline) {
  constexpr int kQuickly = 1000;
  constexpr std::chrono::microseconds kPause{100};
  for (int round = 0;; ++round) {
    const ncclResult_t state = async_error();
    if (state != ncclInProgress || Clock::now() >= deadline) {
      return state;
    }
    if (round < kQuickly) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

void NcclComm::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) {
    (void)nccl_.comm_abort(comm_);
    comm_ = nullptr;
  }
}

bool NcclComm::leave(std::chrono::milliseconds timeout) noexcept {
  const auto finalize = [this](ncclComm_t comm) { return nccl_.comm_finalize(comm); };
  const ncclResult_t status = enqueue(finalize, Clock::now() + timeout);
  if (status != ncclSuccess) {
    abort();
    return false;
  }
  const std::lock_guard lock(mutex_);
  (void)nccl_.comm_destroy(comm_);
  comm_ = nullptr;
  return true;
}

}  // namespace dstrain
