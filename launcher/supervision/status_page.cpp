#include "launcher/supervision/status_page.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace dstrain::launcher {

namespace {
using Word = std::atomic<std::int64_t>;
constexpr std::size_t kPageBytes = 4096;
}  // namespace

// Words that only one thread writes, and any process reads. Those of the computing thread are
// guarded by a sequence number, odd while they change (a seqlock), so that a reader can tell a
// mixture; it is not a mutex: a rank that is stopped in the middle of a change keeps nobody
// waiting.
struct StatusLayout {
  static constexpr std::int64_t kMagic = 0x3130'5441'5453'5344;  // "DSSTAT01"
  static constexpr std::size_t kNameBytes = 88;
  static constexpr std::size_t kOperationBytes = 32;
  static constexpr std::size_t kMostGroups = 12;
  static constexpr std::size_t kMostOperations = 64;

  struct Group {
    std::array<char, kNameBytes> name;  // whole before num_groups counts it; then it stays
    Word started;
    Word operation;  // its number + 1; 0: none is under way
    Word since;
  };

  Word magic;  // last of what attach() writes
  Word sequence;
  Word phase;
  Word phase_since;
  Word num_steps;
  Word step;
  Word computing;
  std::array<Word, kNumRankPhases> longest;  // by phase; for training it is the longest step
  Word comparable;
  Word waiting_since;  // 0: it does not wait
  Word num_groups;
  Word num_operations;
  std::array<Group, kMostGroups> groups;
  std::array<std::array<char, kOperationBytes>, kMostOperations> operations;
};
static_assert(sizeof(StatusLayout) <= kPageBytes && Word::is_always_lock_free);

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Release and acquire on every word instead of fences: what is stored after the odd number is
// never seen without it.
std::int64_t get(const Word& word) {
  return word.load(std::memory_order_acquire);
}
void put(Word& word, std::int64_t value) {
  word.store(value, std::memory_order_release);
}

/// The computing thread's words change while one exists.
class Change {
 public:
  explicit Change(StatusLayout& page) : page_(page) {
    put(page_.sequence, get(page_.sequence) + 1);
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  ~Change() { put(page_.sequence, get(page_.sequence) + 1); }

 private:
  StatusLayout& page_;
};

template <std::size_t kSize>
void set_name(std::array<char, kSize>& to, std::string_view name) {
  const std::size_t size = std::min(name.size(), kSize - 1);
  std::memcpy(to.data(), name.data(), size);
  to[size] = '\0';
}

template <std::size_t kSize>
std::string text_in(const std::array<char, kSize>& name) {
  return {name.data(), strnlen(name.data(), kSize)};
}

}  // namespace

StatusPage StatusPage::make() {
  FileDescriptor file(memfd_create("dstrain-status", MFD_CLOEXEC));
  if (!file) fail("memfd_create");
  if (ftruncate(file.get(), kPageBytes) != 0) fail("ftruncate of a memfd");
  return StatusPage(std::move(file));
}

StatusPage StatusPage::open(FileDescriptor file) {
  const int fd = file.get();
  const off_t bytes = lseek(fd, 0, SEEK_END);
  if (bytes >= 0 && bytes != static_cast<off_t>(kPageBytes)) errno = EINVAL;
  if (bytes != static_cast<off_t>(kPageBytes)) {
    fail(fmt::format("{}={}: no status page", kStatusPageVariable, fd));
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return StatusPage(std::move(file));
}

StatusPage::StatusPage(FileDescriptor file) : file_(std::move(file)) {
  void* const memory =
      mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) fail("mmap of a status page");
  page_ = static_cast<StatusLayout*>(memory);  // all zero, or what the rank has written
}

StatusPage::StatusPage(StatusPage&& other) noexcept
    : file_(std::move(other.file_)),
      page_(std::exchange(other.page_, nullptr)),
      step_began_(other.step_began_),
      waited_(other.waited_),
      waits_(other.waits_) {}

StatusPage::~StatusPage() {
  if (page_ != nullptr) munmap(page_, kPageBytes);
}

std::optional<RankStatus> StatusPage::read() const {
  const StatusLayout& page = *page_;
  if (get(page.magic) != StatusLayout::kMagic) return std::nullopt;
  RankStatus status;
  // A rank that was stopped in the middle of a change never completes it: then a mixture of two
  // neighbouring moments must suffice.
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::int64_t before = get(page.sequence);
    const std::int64_t read_at = now();
    const auto since = [&](std::int64_t then) {
      return RankStatus::Duration{std::max<std::int64_t>(0, read_at - then)};
    };
    const auto longest = [&](RankPhase phase) {
      return RankStatus::Duration{get(page.longest[static_cast<std::size_t>(phase)])};
    };
    status.phase =
        static_cast<RankPhase>(std::clamp<std::int64_t>(get(page.phase), 0, kNumRankPhases - 1));
    status.in_phase_for = since(get(page.phase_since));
    status.num_steps = get(page.num_steps);
    status.step = get(page.step);
    status.computing = RankStatus::Duration{get(page.computing)};
    status.longest_step = longest(RankPhase::kTraining);
    status.longest_evaluation = longest(RankPhase::kEvaluating);
    status.longest_save = longest(RankPhase::kSaving);
    status.comparable = static_cast<int>(get(page.comparable));
    const std::int64_t waiting_since = get(page.waiting_since);
    status.waiting_for.reset();
    if (waiting_since != 0) status.waiting_for = since(waiting_since);
    status.groups.clear();
    const auto num_groups = static_cast<std::size_t>(
        std::clamp<std::int64_t>(get(page.num_groups), 0, StatusLayout::kMostGroups));
    for (std::size_t i = 0; i < num_groups; ++i) {
      const StatusLayout::Group& group = page.groups[i];
      const std::int64_t operation = get(group.operation);
      const bool known = operation > 0 && operation <= get(page.num_operations);
      status.groups.push_back(
          {.name = text_in(group.name),
           .started = static_cast<std::uint64_t>(get(group.started)),
           .operation =
               known ? text_in(page.operations[static_cast<std::size_t>(operation - 1)]) : "",
           .operating_for = known ? since(get(group.since)) : RankStatus::Duration{}});
    }
    if (before % 2 == 0 && get(page.sequence) == before) break;
  }
  return status;
}

void StatusPage::attach() {
  put(page_->phase, static_cast<std::int64_t>(RankPhase::kStarting));
  put(page_->phase_since, now());
  put(page_->magic, StatusLayout::kMagic);
}

int StatusPage::add_group(std::string_view name) {
  const std::int64_t number = get(page_->num_groups);
  if (number >= static_cast<std::int64_t>(StatusLayout::kMostGroups)) return -1;
  set_name(page_->groups[static_cast<std::size_t>(number)].name, name);
  put(page_->num_groups, number + 1);
  return static_cast<int>(number);
}

int StatusPage::add_operation(std::string_view name) {
  const std::int64_t number = get(page_->num_operations);
  if (number >= static_cast<std::int64_t>(StatusLayout::kMostOperations)) return -1;
  set_name(page_->operations[static_cast<std::size_t>(number)], name);
  put(page_->num_operations, number + 1);
  return static_cast<int>(number);
}

void StatusPage::begin_phase(RankPhase phase) noexcept {
  const Change change(*page_);
  const std::int64_t time = now();
  const auto before = static_cast<std::size_t>(get(page_->phase));
  const std::int64_t lasted = time - get(page_->phase_since);
  if (before == static_cast<std::size_t>(RankPhase::kTraining)) {
    // The step under way stands still, and so does its clock.
    step_began_ = step_began_ - time;
  } else {
    put(page_->longest[before], std::max(get(page_->longest[before]), lasted));
  }
  if (phase == RankPhase::kTraining) step_began_ = step_began_ + time;
  put(page_->phase, static_cast<std::int64_t>(phase));
  put(page_->phase_since, time);
}

void StatusPage::finish_step(std::int64_t step) noexcept {
  const Change change(*page_);
  const std::int64_t time = now();
  const std::int64_t lasted = time - step_began_;
  Word& longest = page_->longest[static_cast<std::size_t>(RankPhase::kTraining)];
  put(longest, std::max(get(longest), lasted));
  put(page_->computing, get(page_->computing) + std::max<std::int64_t>(0, lasted - waited_));
  put(page_->num_steps, get(page_->num_steps) + 1);
  put(page_->step, step);
  put(page_->phase_since, time);
  step_began_ = time;
  waited_ = 0;
}

void StatusPage::begin_wait() noexcept {
  if (waits_++ > 0) return;
  const Change change(*page_);
  put(page_->waiting_since, now());
}

void StatusPage::end_wait() noexcept {
  if (--waits_ > 0) return;
  const Change change(*page_);
  if (get(page_->phase) == static_cast<std::int64_t>(RankPhase::kTraining)) {
    waited_ += now() - get(page_->waiting_since);
  }
  put(page_->waiting_since, 0);
}

void StatusPage::set_comparable(int number) noexcept {
  const Change change(*page_);
  put(page_->comparable, number);
}

void StatusPage::begin_operation(int group, int operation) noexcept {
  if (group < 0) return;
  StatusLayout::Group& slot = page_->groups[static_cast<std::size_t>(group)];
  put(slot.since, now());
  put(slot.started, get(slot.started) + 1);
  put(slot.operation, operation + 1);
}

void StatusPage::end_operation(int group) noexcept {
  if (group < 0) return;
  put(page_->groups[static_cast<std::size_t>(group)].operation, 0);
}

}  // namespace dstrain::launcher
