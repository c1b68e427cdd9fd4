#include "launcher/supervisor.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

constexpr int kSignalBase = 128;
constexpr int kInternalError = 1;

std::string signal_name(int number) {
  const char* const name = sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

}  // namespace

Supervisor::Supervisor(asio::io_context& loop,
                       Spawner& spawner,
                       LogMux& log,
                       SupervisorOptions options)
    : loop_(loop),
      spawner_(spawner),
      log_(log),
      options_(std::move(options)),
      signals_(loop, SIGINT, SIGTERM),
      timer_(loop),
      early_timer_(loop) {
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) signals_.add(SIGHUP);  // else: nohup
}

int Supervisor::run(const Job& job) {
  wait_for_signal();
  const bool started = start_all(job);
  loop_.restart();
  while (!all_ended())
    loop_.run_one();
  spawner_.sweep();
  timer_.cancel();
  early_timer_.cancel();
  signals_.cancel();
  const int exit_code = started ? verdict() : kInternalError;
  log_.finish();
  return exit_code;
}

bool Supervisor::start_all(const Job& job) {
  members_.resize(job.processes.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    member.spec = &job.processes[i];
    const int rank = member.spec->rank;
    try {
      member.process = spawner_.start(
          *member.spec,
          {.on_output = [this, rank](OutputStream stream,
                                     std::string_view bytes) { log_.output(rank, stream, bytes); },
           .on_exit = [this, &member](ExitStatus status) { on_exit(member, status); }});
    } catch (const std::system_error& error) {
      log_.announce(fmt::format("error: rank {} on {} cannot be started: {}", rank,
                                member.spec->host, error.what()));
      members_.resize(i);
      kill_all();
      return false;
    }
  }
  return true;
}

void Supervisor::on_exit(Member& member, ExitStatus status) {
  log_.end_of_output(member.spec->rank);
  member.status = status;
  member.ended_in = phase_;
  member.order = ++ends_;
  if (all_ended() || phase_ != Phase::kRunning) return;
  if (!is_orderly(member)) {
    phase_ = Phase::kBlaming;
    timer_.expires_after(options_.blame_window);
    timer_.async_wait([this](const asio::error_code& error) {
      if (!error && phase_ == Phase::kBlaming) blame_then_stop();
    });
  } else if (ends_ == 1 && interrupted_by_ == 0) {
    early_timer_.expires_after(options_.early_exit_grace);
    early_timer_.async_wait([this](const asio::error_code& error) {
      if (error || phase_ != Phase::kRunning) return;
      early_exit_blamed_ = true;
      blame_then_stop();
    });
  }
}

void Supervisor::blame_then_stop() {
  const auto running = std::count_if(members_.begin(), members_.end(),
                                     [](const Member& member) { return !member.status; });
  if (const Member* member = to_blame()) {
    log_.announce(fmt::format("rank {} has failed; stopping the {} other{}", member->spec->rank,
                              running, running == 1 ? "" : "s"));
  }
  stop();
}

void Supervisor::stop() {
  phase_ = Phase::kStopping;
  signal_all(SIGTERM);
  timer_.expires_after(options_.kill_grace);
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error && phase_ == Phase::kStopping) kill_all();
  });
}

void Supervisor::kill_all() {
  phase_ = Phase::kKilling;
  signal_all(SIGKILL);
}

void Supervisor::signal_all(int number) {
  for (const Member& member : members_) {
    if (member.process) member.process->signal(number);
  }
}

void Supervisor::wait_for_signal() {
  signals_.async_wait([this](const asio::error_code& error, int number) {
    if (error) return;
    wait_for_signal();
    on_signal(number);
  });
}

void Supervisor::on_signal(int number) {
  if (interrupted_by_ != 0) {
    log_.announce(fmt::format("{} again: killing all ranks", signal_name(number)));
    kill_all();
    return;
  }
  interrupted_by_ = number;
  early_timer_.cancel();
  if (phase_ != Phase::kRunning) return;  // they are being stopped already
  log_.announce(
      fmt::format("{}: the ranks finish their step, save and end; once more kills them now",
                  signal_name(number)));
  signal_all(number == SIGHUP ? SIGTERM : number);  // to the ranks, SIGHUP means nothing else
}

bool Supervisor::all_ended() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.status.has_value(); });
}

/// Success, or what a process does that was asked to end.
bool Supervisor::is_orderly(const Member& member) const {
  const auto& [code, signal, detail] = *member.status;
  if (signal != 0) return interrupted_by_ != 0 && (signal == SIGINT || signal == SIGTERM);
  return code == 0 || code == kSignalBase + SIGINT || code == kSignalBase + SIGTERM;
}

namespace {
/// How likely it is that an end was the cause of the others, the most likely first.
enum Suspicion : int { kSignalled, kOwnError, kLeftEarly, kErrorWhenTold, kLostPeer, kInnocent };
}  // namespace

int Supervisor::suspicion(const Member& member) const {
  if (!member.status) return kInnocent;
  const bool was_told = member.ended_in == Phase::kStopping || member.ended_in == Phase::kKilling;
  if (member.status->signal != 0) {
    const bool by_us = member.status->signal == SIGTERM || member.status->signal == SIGKILL;
    if (is_orderly(member) || (was_told && by_us)) return kInnocent;
    return was_told ? kErrorWhenTold : kSignalled;
  }
  if (is_orderly(member)) {
    return early_exit_blamed_ && !was_told ? kLeftEarly : kInnocent;
  }
  if (member.status->code == options_.peer_lost_code) return kLostPeer;
  return was_told ? kErrorWhenTold : kOwnError;
}

const Supervisor::Member* Supervisor::to_blame() const {
  const auto rank_of = [&](const Member& member) {
    return std::pair(suspicion(member), member.order);
  };
  const auto first =
      std::min_element(members_.begin(), members_.end(),
                       [&](const Member& a, const Member& b) { return rank_of(a) < rank_of(b); });
  return first == members_.end() || suspicion(*first) == kInnocent ? nullptr : &*first;
}

int Supervisor::verdict() {
  const Member* const member = to_blame();
  if (member != nullptr) {
    log_.announce(fmt::format("error: {}", describe(*member)));
    const auto& [code, signal, detail] = *member->status;
    if (signal != 0) return kSignalBase + signal;
    return code == 0 || code == options_.peer_lost_code ? kInternalError : code;
  }
  // Everybody ended in order; those that were interrupted say by what.
  int highest = 0;
  for (const Member& m : members_) {
    highest =
        std::max(highest, m.status->signal != 0 ? kSignalBase + m.status->signal : m.status->code);
  }
  return highest != 0 && interrupted_by_ != 0 ? kSignalBase + interrupted_by_ : highest;
}

std::string Supervisor::describe(const Member& member) const {
  const ProcessSpec& spec = *member.spec;
  const auto& [code, signal, detail] = *member.status;
  std::string text = fmt::format("rank {} (local rank {}) on {}, pid {}, ", spec.rank,
                                 spec.local_rank, spec.host, member.process->pid());
  if (signal != 0) {
    text += fmt::format("was killed by {} (signal {})", signal_name(signal), signal);
    if (signal == SIGKILL)
      text += ", which is also how the kernel ends a process when memory runs out";
  } else if (suspicion(member) == kLeftEarly) {
    text += fmt::format("ended with exit code {} while others were still running {} s later", code,
                        std::chrono::duration<double>(options_.early_exit_grace).count());
  } else {
    text += fmt::format("ended with exit code {}", code);
    const std::string meaning = options_.describe_exit_code(code);
    if (!meaning.empty()) text += fmt::format(" ({})", meaning);
  }
  const std::string& words = log_.last_words(spec.rank);
  if (!words.empty()) text += fmt::format("; its last words: {}", words);
  return text;
}

}  // namespace dstrain::launcher
