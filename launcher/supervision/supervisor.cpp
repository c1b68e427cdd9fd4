#include "launcher/supervision/supervisor.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "launcher/supervision/screen_text.h"

namespace dstrain::launcher {
namespace {

constexpr int kSignalBase = 128;
constexpr int kInternalError = 1;

}  // namespace

Supervisor::Supervisor(asio::io_context& loop,
                       Spawner& spawner,
                       LogMux& log,
                       SupervisorOptions options)
    : loop_(loop),
      spawner_(spawner),
      log_(log),
      options_(std::move(options)),
      signals_(loop, SIGINT, SIGTERM, SIGTSTP),
      timer_(loop),
      early_timer_(loop),
      watch_timer_(loop),
      hang_watch_(options_.hang_limits),
      straggler_watch_(options_.straggler_limits) {
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) signals_.add(SIGHUP);  // else: nohup
}

/// A timer that has expired calls its handler even if it is then cancelled, when this object may be
/// gone while its loop runs on.
std::function<void(const asio::error_code&)> Supervisor::while_running(std::function<void()> act) {
  return [act = std::move(act),
          running = std::weak_ptr<const int>(running_)](const asio::error_code& error) {
    if (!error && !running.expired()) act();
  };
}

JobOutcome Supervisor::run(const Job& job) {
  wait_for_signal();
  watch_later();
  start_all(job);
  loop_.restart();
  while (!all_ended())
    loop_.run_one();
  spawner_.sweep();
  for (asio::steady_timer* const timer : {&timer_, &early_timer_, &watch_timer_})
    timer->cancel();
  signals_.cancel();
  running_.reset();
  JobOutcome outcome = not_started_ ? *not_started_ : verdict();
  outcome.interrupted_by = interrupted_by_;
  log_.finish();
  return outcome;
}

void Supervisor::start_all(const Job& job) {
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
           .on_exit = [this, &member](
                          ExitStatus status) { on_end(member, {.status = std::move(status)}); },
           .on_lost = [this,
                       &member](std::string why) { on_end(member, {.lost = std::move(why)}); }});
    } catch (const std::system_error& error) {
      JobOutcome& outcome = not_started_.emplace();
      outcome.exit_code = kInternalError;
      outcome.cause =
          fmt::format("rank {} on {} cannot be started: {}", rank, member.spec->host, error.what());
      outcome.description = outcome.cause;
      outcome.failed_hosts = {member.spec->host};
      log_.announce("error: " + outcome.cause);
      members_.resize(i);
      kill_all();
      return;
    }
  }
}

void Supervisor::on_end(Member& member, RankEnd end) {
  log_.end_of_output(member.spec->rank);
  end.spec = member.spec;
  end.pid = member.process->pid();
  end.order = ++num_ends_;
  end.was_told = phase_ == Phase::kStopping || phase_ == Phase::kKilling;
  member.end = std::move(end);
  if (all_ended() || phase_ != Phase::kRunning) return;
  // A rank that the passed-on signal itself ended could not end in order yet: the others will wait
  // for it in vain.
  const bool died_of_it = interrupted_by_ != 0 && member.end->status.signal != 0;
  if (!is_orderly(*member.end, rules()) || died_of_it) {
    phase_ = Phase::kBlaming;
    timer_.expires_after(options_.blame_window);
    timer_.async_wait(while_running([this] {
      if (phase_ == Phase::kBlaming) blame_then_stop();
    }));
  } else if (num_ends_ == 1 && interrupted_by_ == 0) {
    early_timer_.expires_after(options_.early_exit_grace);
    early_timer_.async_wait(while_running([this] {
      if (phase_ != Phase::kRunning) return;
      early_exit_blamed_ = true;
      blame_then_stop();
    }));
  }
}

void Supervisor::watch_later() {
  watch_timer_.expires_after(options_.watch_interval);
  watch_timer_.async_wait(while_running([this] {
    if (phase_ != Phase::kRunning) return;
    watch();
    if (phase_ == Phase::kRunning) watch_later();
  }));
}

void Supervisor::watch() {
  std::vector<RankObservation> ranks;
  for (const Member& member : members_) {
    if (!member.end && member.process) {
      ranks.push_back(
          {.spec = member.spec, .pid = member.process->pid(), .status = member.process->status()});
    }
  }
  const auto now = std::chrono::steady_clock::now();
  for (const std::string& sentence : straggler_watch_.observe(now, ranks))
    log_.announce("warning: " + sentence);
  for (const std::string& sentence : stopped_watch_.observe(now, ranks))
    log_.announce("warning: " + sentence);
  if (interrupted_by_ != 0 && now - interrupted_at_ > options_.kill_grace &&
      stopped_watch_.longest() > options_.kill_grace) {
    log_.announce("a rank that is stopped cannot end; the ranks are killed");
    return kill_all();
  }
  hang_ = hang_watch_.observe(now, ranks);
  if (!hang_) return;
  log_.announce("the job hangs and is stopped: " + hang_->text);
  stop();
}

void Supervisor::blame_then_stop() {
  const auto running = std::count_if(members_.begin(), members_.end(),
                                     [](const Member& member) { return !member.end; });
  const std::vector<RankEnd> all = ends();
  if (const RankEnd* const cause = find_cause(all, rules())) {
    log_.announce(fmt::format("{}; stopping the {}", describe_briefly(*cause, rules()),
                              counted(running, "other")));
  }
  stop();
}

void Supervisor::stop() {
  phase_ = Phase::kStopping;
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // a stopped process would not get the signal
  timer_.expires_after(options_.kill_grace);
  timer_.async_wait(while_running([this] {
    if (phase_ == Phase::kStopping) kill_all();
  }));
}

void Supervisor::kill_all() {
  phase_ = Phase::kKilling;
  signal_all(SIGKILL);
  timer_.expires_after(options_.unkillable_grace);
  timer_.async_wait(while_running([this] { give_up_the_unkillable(); }));
}

/// The kernel ends a process only where it is not inside a call that cannot be interrupted.
void Supervisor::give_up_the_unkillable() {
  for (Member& member : members_) {
    if (member.end || !member.process) continue;
    const auto status = member.process->status();
    RankEnd end;
    end.lost = fmt::format("SIGKILL has not ended it for {}; it {} and is left to the kernel",
                           text_of(options_.unkillable_grace),
                           describe(status ? status->process : ProcessState{}));
    on_end(member, std::move(end));
  }
}

void Supervisor::signal_all(int number) {
  for (const Member& member : members_) {
    if (member.process) member.process->signal(number);
  }
}

void Supervisor::wait_for_signal() {
  signals_.async_wait([this, running = std::weak_ptr<const int>(running_)](
                          const asio::error_code& error, int number) {
    if (error || running.expired()) return;
    wait_for_signal();
    on_signal(number);
  });
}

void Supervisor::on_signal(int number) {
  if (number == SIGTSTP) {
    log_.announce(
        "a stopped launcher would lose its hosts, so Ctrl-Z is ignored; Ctrl-C ends "
        "the "
        "run, and the same command resumes it later");
    return;
  }
  if (interrupted_by_ != 0) {
    log_.announce(fmt::format("{} again: killing all ranks", signal_name(number)));
    kill_all();
    return;
  }
  interrupted_by_ = number;
  interrupted_at_ = std::chrono::steady_clock::now();
  early_timer_.cancel();
  if (phase_ != Phase::kRunning) return;  // they are being stopped already
  log_.announce(
      fmt::format("{}: the ranks finish their step, save and end; a second one kills them now",
                  signal_name(number)));
  signal_all(number == SIGHUP ? SIGTERM : number);  // to the ranks, SIGHUP means nothing else
  signal_all(SIGCONT);
}

bool Supervisor::all_ended() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.end.has_value(); });
}

BlameRules Supervisor::rules() const {
  return {.peer_lost_code = options_.peer_lost_code,
          .interrupted_by = interrupted_by_,
          .early_exit_grace = options_.early_exit_grace,
          .describe_exit_code = options_.describe_exit_code};
}

std::vector<RankEnd> Supervisor::ends() const {
  std::vector<RankEnd> all;
  for (const Member& member : members_) {
    if (!member.end) continue;
    all.push_back(*member.end);
    all.back().too_early =
        early_exit_blamed_ && !all.back().was_told && is_orderly(all.back(), rules());
  }
  return all;
}

JobOutcome Supervisor::verdict() {
  const std::vector<RankEnd> all = ends();
  if (hang_) {
    JobOutcome outcome{.exit_code = options_.hang_code,
                       .cause = "the job hung",
                       .description = "the job hung: " + hang_->text};
    log_.announce("error: " + outcome.description);
    for (const ProcessSpec* const spec : hang_->absent) {
      if (outcome.failed_hosts.empty()) {
        outcome.cause = fmt::format("rank {} on {} hung", spec->rank, spec->host);
      }
      auto& hosts = outcome.failed_hosts;
      if (std::find(hosts.begin(), hosts.end(), spec->host) == hosts.end()) {
        hosts.push_back(spec->host);
      }
    }
    return outcome;
  }
  if (const RankEnd* const cause = find_cause(all, rules())) {
    const int rank = cause->spec->rank;
    const std::string description = describe(*cause, rules(), log_.last_words(rank));
    std::string told =
        log_.has_just_said_why(rank) ? describe(*cause, rules(), /*last_words=*/{}) : description;
    if (const std::set<int> ranks = log_.in_the_same_words(rank); ranks.size() > 1) {
      told += fmt::format("; ranks {} said the same", ranges_text(ranks));
    }
    log_.announce("error: " + told);
    return {.exit_code = exit_code_of(*cause, rules()),
            .cause = describe_briefly(*cause, rules()),
            .description = description,
            .failed_hosts = {cause->spec->host}};
  }
  // All ended in order; the exit codes of those that were interrupted tell the signal.
  int highest = 0;
  for (const RankEnd& end : all) {
    highest = std::max(highest,
                       end.status.signal != 0 ? kSignalBase + end.status.signal : end.status.code);
  }
  return {.exit_code =
              highest != 0 && interrupted_by_ != 0 ? kSignalBase + interrupted_by_ : highest};
}

}  // namespace dstrain::launcher
