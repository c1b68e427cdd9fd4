#include "engine/comm/nccl_watchdog.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/comm/block_signals.h"
#include "kernels/core/check.h"
#include "kernels/cuda/cuda_check.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// The time between two checks; also how long a collective may make no progress before the other
/// members are asked, and until they are asked again.
milliseconds look_interval(milliseconds timeout) {
  return std::clamp(timeout / 20, milliseconds{1}, milliseconds{100});
}
milliseconds patience(milliseconds timeout) {
  return std::min(timeout / 4, milliseconds{2000});
}

/// Takes the lock up again, however the block ends.
class Relock {
 public:
  explicit Relock(std::unique_lock<std::mutex>& lock) : lock_(lock) {}
  Relock(const Relock&) = delete;
  Relock& operator=(const Relock&) = delete;
  ~Relock() { lock_.lock(); }

 private:
  std::unique_lock<std::mutex>& lock_;
};

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

NcclEvent::NcclEvent() {
  cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

NcclEvent::~NcclEvent() {
  (void)cudaEventDestroy(event_);
}

void NcclEvent::record(cudaStream_t stream) {
  cuda_check(cudaEventRecord(event_, stream), "cudaEventRecord");
}

bool NcclEvent::has_passed() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // an answer, not an error
    return false;
  }
  cuda_check(status, "cudaEventQuery, or work before it,");
  return true;
}

NcclWatchdog::NcclWatchdog(NcclComm& comm,
                           NcclNotices& notices,
                           CudaDevice& device,
                           const NcclGroup& group,
                           const NcclOptions& options)
    : comm_(comm),
      notices_(notices),
      device_(device),
      group_(group),
      timeout_(options.timeout),
      activity_(options.activity),
      activity_group_(activity_ == nullptr ? 0 : activity_->add_group(group.name)) {
  const BlockSignals block;
  thread_ = std::jthread([this] { watch(); });
}

NcclWatchdog::~NcclWatchdog() {
  (void)stop();
}

bool NcclWatchdog::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  return trouble_ == nullptr;
}

NcclWatchdog::Collective& NcclWatchdog::begin(const Call& call, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (abort_requested_ && trouble_ == nullptr) {
    throw PeerLost(
        fmt::format("{} in group \"{}\": the group was aborted", call.describe(), group_.name));
  }
  if (trouble_ != nullptr) {
    std::rethrow_exception(trouble_);
  }
  if (spare_.empty()) {
    spare_.emplace_back();
  }
  Collective& collective = spare_.front();
  collective.ready.record(stream);
  collective.call = call;
  collective.number = call.op == Op::kExchange ? number_ : ++number_;
  collective.is_enqueued = false;
  collective.since = {};
  collective.asked_at = {};
  pending_.splice(pending_.end(), spare_, spare_.begin());
  return collective;
}

void NcclWatchdog::finish(Collective& collective, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  collective.done.record(stream);
  collective.is_enqueued = true;
}

void NcclWatchdog::refuse(const Collective& collective, ncclResult_t status) {
  Lock lock(mutex_);
  if (trouble_ == nullptr) {
    refusal_ = trouble_of(status, describe(collective));
    changed_.notify_all();
    changed_.wait(lock, [this] { return trouble_ != nullptr; });
  }
  std::rethrow_exception(trouble_);
}

void NcclWatchdog::abort() noexcept {
  const std::lock_guard lock(mutex_);
  abort_requested_ = true;
  changed_.notify_all();
}

void NcclWatchdog::watch() {
  Lock lock(mutex_);
  while (trouble_ == nullptr) {
    changed_.wait_for(lock, look_interval(timeout_),
                      [this] { return stopping_ || abort_requested_ || refusal_ != nullptr; });
    std::exception_ptr trouble;
    try {
      cuda_check(cudaSetDevice(device_.index()), "cudaSetDevice");
      retire_done();
      take_back_notice(lock);
      trouble = find_trouble(lock);
    } catch (...) {  // a thread's entry point
      trouble = std::current_exception();
    }
    if (trouble != nullptr) {
      end_group(lock, trouble);
    } else if (stopping_) {
      return;
    }
  }
}

void NcclWatchdog::retire_done() {
  while (!pending_.empty()) {
    Collective& oldest = pending_.front();
    if (oldest.since == TimePoint{}) {
      if (!oldest.ready.has_passed()) {
        return;
      }
      oldest.since = Clock::now();
      tell_begin(oldest.call);
    }
    if (!oldest.is_enqueued || !oldest.done.has_passed()) {
      return;
    }
    tell_end();
    spare_.splice(spare_.begin(), pending_, pending_.begin());
  }
}

std::exception_ptr NcclWatchdog::find_trouble(Lock& lock) {
  if (std::exception_ptr failure = device_.failure(); failure != nullptr) {
    return failure;
  }
  if (refusal_ != nullptr) {
    return refusal_;
  }
  if (abort_requested_) {
    return std::make_exception_ptr(PeerLost(describe_oldest() + ": the group was aborted"));
  }
  if (const ncclResult_t state = comm_.async_error();
      state != ncclSuccess && state != ncclInProgress) {
    return trouble_of(state, describe_oldest());
  }
  return has_begun() ? ask_others(lock, pending_.front()) : nullptr;
}

/// The collective that this rank reported waiting in has ended.
void NcclWatchdog::take_back_notice(Lock& lock) {
  if (!has_told_ || (has_begun() && pending_.front().asked_at != TimePoint{})) {
    return;
  }
  has_told_ = false;
  lock.unlock();
  const Relock relock(lock);
  notices_.tell_waiting(std::nullopt);
}

// Asks without the lock, as the store is at the other end of a network; the collective stays, since
// only this thread removes it.
std::exception_ptr NcclWatchdog::ask_others(Lock& lock, Collective& oldest) {
  const TimePoint now = Clock::now();
  const Clock::duration age = now - oldest.since;
  const milliseconds pause = patience(timeout_);
  const bool is_late = age >= timeout_;
  // Shortly before the deadline it does not ask any more, since the error at the deadline says
  // more.
  const bool is_due = age >= pause && age < timeout_ - pause && now - oldest.asked_at >= pause;
  if (!is_late && !is_due) {
    return nullptr;
  }
  const NcclNotices::Waiting mine{.number = oldest.number, .call = oldest.call};
  const bool is_first = oldest.asked_at == TimePoint{};
  oldest.asked_at = now;
  has_told_ = true;
  const std::string where = describe(oldest);
  const double seconds = std::chrono::duration<double>(age).count();
  lock.unlock();
  const Relock relock(lock);
  if (is_first) {
    notices_.tell_waiting(mine);
  }
  if (!is_late) {
    const std::optional<std::string> words = notices_.failure();
    return !words ? nullptr
                  : std::make_exception_ptr(PeerLost(fmt::format(
                        "{}: a member gave up, after {:.3g} s: {}", where, seconds, *words)));
  }
  const NcclNotices::Comparison others = notices_.compare(mine);
  const std::string text =
      fmt::format("{}: not done {:.3g} s after it could begin{}", where, seconds, others.text);
  return others.calls_differ ? std::make_exception_ptr(InternalError(text))
                             : std::make_exception_ptr(Timeout(text));
}

// The others are notified first: NCCL's abort may wait for theirs. The device fails before the
// abort, which lets its streams continue, without results.
void NcclWatchdog::end_group(Lock& lock, std::exception_ptr trouble) {
  trouble_ = std::move(trouble);
  changed_.notify_all();
  const std::string words = text_of(trouble_);
  if (device_.failure() == nullptr) {
    spdlog::error("{}", words);
  }
  if (!pending_.empty()) {
    device_.fail(trouble_);
  }
  lock.unlock();
  notices_.tell_failure(words);
  comm_.abort();
  lock.lock();
  if (has_begun()) {
    tell_end();
  }
}

std::string NcclWatchdog::describe_oldest() const {
  return has_begun() ? describe(pending_.front())
                     : fmt::format("group \"{}\" on rank {} of {}", group_.name, group_.rank,
                                   group_.members.size());
}

std::string NcclWatchdog::describe(const Collective& collective) const {
  return fmt::format("{} ({} bytes) in group \"{}\" on rank {} of {}", collective.call.describe(),
                     collective.call.bytes(), group_.name, group_.rank, group_.members.size());
}

std::exception_ptr NcclWatchdog::trouble_of(ncclResult_t status, const std::string& where) const {
  const std::string text = fmt::format("{}: {}", where, comm_.nccl().describe(status));
  switch (status) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return std::make_exception_ptr(InternalError(text));
    case ncclUnhandledCudaError:  // of this rank's GPU
      return std::make_exception_ptr(CudaError(text));
    default:
      return std::make_exception_ptr(PeerLost(text));
  }
}

void NcclWatchdog::tell_begin(const Call& call) noexcept {
  if (activity_ != nullptr) {
    activity_->begin_collective(activity_group_, call.op, call.purpose);
  }
}

void NcclWatchdog::tell_end() noexcept {
  if (activity_ != nullptr) {
    activity_->end_collective(activity_group_);
  }
}

}  // namespace dstrain
