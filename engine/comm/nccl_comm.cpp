#include "engine/comm/nccl_comm.h"

#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

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
  } catch (const std::exception& failure) {
    notices.tell_failure(failure.what());
    abort();
    throw;
  }
}

NcclComm::~NcclComm() {
  abort();
}

/// The first member's NCCL makes the id: an address that the others connect to.
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

/// Names the members that did not come; where all came, says what to check.
void NcclComm::fail_to_connect(const std::string& where,
                               NcclNotices& notices,
                               std::chrono::milliseconds timeout) {
  if (const std::optional<std::string> words = notices.failure(); words) {
    throw PeerLost(fmt::format("{}: a member gave up: {}", where, *words));
  }
  const double seconds = std::chrono::duration<double>(timeout).count();
  if (const std::vector<int> missing = notices.missing(); !missing.empty()) {
    throw Timeout(fmt::format("{}: rank(s) {} of the job did not join within {:.3g} s", where,
                              fmt::join(missing, ", "), seconds));
  }
  throw Timeout(fmt::format(
      "{}: all members arrived, but could not connect within {:.3g} s; NCCL_SOCKET_IFNAME names "
      "the "
      "network interface that NCCL should use, NCCL_DEBUG=INFO makes it log what it does",
      where, seconds));
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
  ncclComm_t comm = nullptr;
  ncclResult_t status = nccl_.comm_init_rank_config(&comm, size, id, group.rank, &config);
  comm_ = comm;
  if (status == ncclSuccess || status == ncclInProgress) {
    status = wait({.deadline = deadline, .notices = &notices});
  }
  if (status == ncclSuccess) {
    return;
  }
  const std::string where = fmt::format("forming group \"{}\" on rank {} of {} over {}", group.name,
                                        group.rank, size, nccl_.version());
  if (status == ncclInProgress) {
    fail_to_connect(where, notices, timeout);
  }
  if (status == ncclRemoteError || status == ncclSystemError) {
    throw PeerLost(fmt::format("{}: {}", where, nccl_.describe(status)));
  }
  throw CudaError(fmt::format("{}: {}", where, nccl_.describe(status)));
}

ncclResult_t NcclComm::async_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const ncclComm_t comm = comm_;
  if (comm == nullptr) {
    return ncclInvalidUsage;
  }
  if (!lock) {
    return ncclInProgress;
  }
  ncclResult_t state = ncclSuccess;
  const ncclResult_t status = nccl_.comm_get_async_error(comm, &state);
  return status == ncclSuccess ? state : status;
}

// A call is mostly in progress for some microseconds; while peers connect, for as long as they
// take.
ncclResult_t NcclComm::wait(const Patience& patience) {
  constexpr int kQuickly = 1000;
  constexpr std::chrono::microseconds kPause{100};
  constexpr std::chrono::milliseconds kBetweenNotices{250};
  TimePoint look_at = Clock::now() + kBetweenNotices;
  for (int round = 0;; ++round) {
    const ncclResult_t state = async_error();
    const TimePoint now = Clock::now();
    if (state != ncclInProgress || now >= patience.deadline) {
      return state;
    }
    if (patience.notices != nullptr && now >= look_at) {
      if (patience.notices->failure()) {
        return state;
      }
      look_at = now + kBetweenNotices;
    }
    if (round < kQuickly) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

void NcclComm::abort() noexcept {
  constexpr std::chrono::seconds kForCalls{1};
  std::unique_lock lock(mutex_, std::defer_lock);
  (void)lock.try_lock_for(kForCalls);
  if (const ncclComm_t comm = comm_.exchange(nullptr); comm != nullptr) {
    (void)nccl_.comm_abort(comm);
  }
}

bool NcclComm::leave(NcclNotices& notices, std::chrono::milliseconds timeout) noexcept {
  const TimePoint deadline = Clock::now() + timeout;
  ncclResult_t status = begin([this](ncclComm_t comm) { return nccl_.comm_finalize(comm); });
  try {
    if (status == ncclInProgress) {
      status = wait({.deadline = deadline, .notices = &notices});
    }
  } catch (const std::exception&) {  // the store is gone, and with it a member
  }
  if (status != ncclSuccess) {
    abort();
    return false;
  }
  const std::lock_guard lock(mutex_);
  (void)nccl_.comm_destroy(comm_.exchange(nullptr));
  return true;
}

}  // namespace dstrain
