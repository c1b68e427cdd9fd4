#include "cmd/rank/status_recorder.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

constexpr int kNumOps = static_cast<int>(Op::kBarrier) + 1;
constexpr int kNumPurposes = static_cast<int>(Purpose::kControl) + 1;

static_assert(
    static_cast<int>(launcher::RankPhase::kStarting) == static_cast<int>(RunPhase::kStarting) &&
    static_cast<int>(launcher::RankPhase::kTraining) == static_cast<int>(RunPhase::kTraining) &&
    static_cast<int>(launcher::RankPhase::kEvaluating) == static_cast<int>(RunPhase::kEvaluating) &&
    static_cast<int>(launcher::RankPhase::kSaving) == static_cast<int>(RunPhase::kSaving) &&
    static_cast<int>(launcher::RankPhase::kEnding) == static_cast<int>(RunPhase::kEnding));

}  // namespace

StatusRecorder::StatusRecorder(launcher::StatusPage page) : page_(std::move(page)) {
  page_.attach();
  for (int op = 0; op < kNumOps; ++op) {
    for (int purpose = 0; purpose < kNumPurposes; ++purpose) {
      operations_.push_back(page_.add_operation(fmt::format(
          "{} ({})", name_of(static_cast<Op>(op)), name_of(static_cast<Purpose>(purpose)))));
    }
  }
}

int StatusRecorder::add_group(const std::string& name) {
  return page_.add_group(name);
}

void StatusRecorder::begin_collective(int group, Op op, Purpose purpose) noexcept {
  const auto at = static_cast<std::size_t>(op) * kNumPurposes + static_cast<std::size_t>(purpose);
  page_.begin_operation(group, operations_[at]);
  if (computes()) page_.begin_wait();
}

void StatusRecorder::end_collective(int group) noexcept {
  if (computes()) page_.end_wait();
  page_.end_operation(group);
}

void StatusRecorder::begin_wait() noexcept {
  if (computes()) page_.begin_wait();
}

void StatusRecorder::end_wait() noexcept {
  if (computes()) page_.end_wait();
}

void StatusRecorder::begin_phase(RunPhase phase) noexcept {
  page_.begin_phase(static_cast<launcher::RankPhase>(phase));
}

void StatusRecorder::finish_step(std::int64_t step) noexcept {
  page_.finish_step(step);
}

void StatusRecorder::set_comparable(int number) noexcept {
  page_.set_comparable(number);
}

std::unique_ptr<StatusRecorder> make_status_recorder(const EnvironmentLookup& lookup) {
  const std::optional<std::string> text = lookup(launcher::kStatusPageVariable);
  if (!text) return nullptr;
  int fd = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), fd);
  if (error != std::errc() || end != text->data() + text->size() || fd < 0) {
    throw ConfigError(
        fmt::format("{}=\"{}\" in the environment: expected the number of an open file",
                    launcher::kStatusPageVariable, *text));
  }
  return std::make_unique<StatusRecorder>(launcher::StatusPage::open(FileDescriptor(fd)));
}

}  // namespace dstrain
