#include "launcher/agent/agent_host.h"

#include <algorithm>
#include <csignal>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "launcher/supervision/blame.h"

namespace dstrain::launcher {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::steady_clock;
using std::chrono::system_clock;

// The exit codes of a shell where there is no such program, or it may not be run.
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;
// A login that prints more than this is not going to stop.
constexpr size_t kMaxBeforePreamble = 64 << 10;
// Heartbeats are not queued behind more than this: the channel is busy, or dead.
constexpr size_t kMaxQueuedForBeat = 64 << 10;

}  // namespace

class AgentHost::RemoteProcess final : public Process {
 public:
  RemoteProcess(AgentHost& host, std::int32_t rank, ProcessEvents events)
      : host_(host), rank_(rank), events_(std::move(events)) {}
  ~RemoteProcess() override {
    signal(SIGKILL);
    if (host_.process_of(rank_) == this) host_.processes_.erase(rank_);
  }

  [[nodiscard]] long pid() const override { return pid_; }
  [[nodiscard]] std::optional<RankStatus> status() const override {
    return ended_ ? std::nullopt : status_;
  }
  void signal(int number) noexcept override {
    if (!ended_) host_.send(Signal{.rank = rank_, .number = number});
  }

  void on_status(const RankStatus& status) { status_ = status; }
  void on_started(std::int64_t pid) { pid_ = static_cast<long>(pid); }
  void on_output(OutputStream stream, std::string_view bytes) {
    if (!ended_) events_.on_output(stream, bytes);
  }
  void on_exit(const ExitStatus& status) {
    if (!std::exchange(ended_, true)) events_.on_exit(status);
  }
  void on_lost(const std::string& why) {
    if (!std::exchange(ended_, true)) events_.on_lost(why);
  }

 private:
  AgentHost& host_;
  const std::int32_t rank_;
  const ProcessEvents events_;
  long pid_ = 0;
  std::optional<RankStatus> status_;
  bool ended_ = false;
};

AgentHost::AgentHost(asio::io_context& loop,
                     std::string name,
                     std::unique_ptr<ByteStream> stream,
                     AgentHostOptions options)
    : loop_(loop),
      name_(std::move(name)),
      options_(std::move(options)),
      stream_(std::move(stream)),
      timer_(loop) {}

AgentHost::~AgentHost() = default;

void AgentHost::greet(OnGreeted done) {
  on_greeted_ = std::move(done);
  last_heard_ = last_beat_ = steady_clock::now();
  stream_->listen({.on_data = [this](std::string_view bytes) { on_data(bytes); },
                   .on_error_data =
                       [this](std::string_view bytes) {
                         stderr_lines_.feed(bytes, [this](LineKind, std::string_view line) {
                           if (line.find_first_not_of(" \t") == std::string_view::npos) return;
                           last_words_ = line;
                           options_.on_words(line);
                         });
                       },
                   .on_closed = [this](const StreamEnd& end) { on_closed(end); }});
  send(LauncherHello{.patience_ms = static_cast<std::uint32_t>(options_.agent_patience.count()),
                     .kill_grace_ms = static_cast<std::uint32_t>(options_.kill_grace.count())});
  beat();
}

void AgentHost::ask(const HostQuestion& question, std::function<void(HostAnswer)> done) {
  if (phase_ == Phase::kClosed) {
    asio::post(loop_, [done = std::move(done), why = why_lost_] { done({.error = why}); });
    return;
  }
  const std::uint32_t number = next_question_++;
  questions_[number] = std::move(done);
  send(AskHost{.number = number, .question = question});
}

std::unique_ptr<Process> AgentHost::start(const ProcessSpec& spec, ProcessEvents events) {
  auto process = std::make_unique<RemoteProcess>(*this, spec.rank, std::move(events));
  if (phase_ == Phase::kClosed) {
    asio::post(loop_, [this, rank = spec.rank, alive = std::weak_ptr<const int>(alive_)] {
      RemoteProcess* const waiting = alive.expired() ? nullptr : process_of(rank);
      if (waiting != nullptr) waiting->on_lost(why_lost_);
    });
  } else {
    std::string frame;
    try {
      frame = encode(ToAgent(Start{spec}));
    } catch (const ProtocolError& error) {
      throw std::system_error(
          E2BIG, std::generic_category(),
          fmt::format("{} with its environment: {}", spec.executable, error.what()));
    }
    stream_->write(frame);
  }
  processes_[spec.rank] = process.get();
  return process;
}

void AgentHost::sweep() {
  send(Sweep{});
}

void AgentHost::say_bye(const Bye& bye) {
  if (phase_ == Phase::kClosed || std::exchange(said_bye_, true)) return;
  send(bye);
  stream_->close_input();
}

void AgentHost::send(const ToAgent& message) {
  if (phase_ != Phase::kClosed) stream_->write(encode(message));
}

void AgentHost::on_data(std::string_view bytes) {
  if (phase_ == Phase::kClosed) return;
  last_heard_ = steady_clock::now();
  std::string behind;
  if (!is_behind_preamble_) {
    before_preamble_ += bytes;
    const size_t at = before_preamble_.find(kAgentPreamble);
    if (at == std::string::npos) {
      if (before_preamble_.size() > kMaxBeforePreamble) {
        fail_greeting({.why = "logging in prints endless text"});
      }
      return;
    }
    is_behind_preamble_ = true;
    behind = before_preamble_.substr(at + kAgentPreamble.size());
    before_preamble_.clear();
    bytes = behind;
  }
  try {
    frames_.feed(bytes, [this](const Frame& frame) {
      if (phase_ == Phase::kClosed) return;
      const FromAgent message = decode_from_agent(frame);
      if (!hello_ && !std::holds_alternative<AgentHello>(message)) {
        throw ProtocolError(fmt::format("a message of type {} before the hello", frame.type));
      }
      std::visit([this](const auto& m) { on_message(m); }, message);
    });
  } catch (const ProtocolError& error) {
    lose(fmt::format("the agent of its host {} sent {}", name_, error.what()));
  }
}

void AgentHost::on_message(const AgentHello& hello) {
  if (hello_) throw ProtocolError("a second hello");
  if (hello.protocol != kAgentProtocol) {
    return fail_greeting(
        {.why = fmt::format("its dstrain speaks protocol {} of agents, this one {}: "
                            "they are different versions",
                            hello.protocol, kAgentProtocol)});
  }
  hello_ = hello;
  clock_offset_ = microseconds{hello.wall_clock_us} -
                  duration_cast<microseconds>(system_clock::now().time_since_epoch());
  phase_ = Phase::kServing;
  std::exchange(on_greeted_, {})(std::nullopt);
}

void AgentHost::on_message(const Started& started) {
  if (RemoteProcess* process = process_of(started.rank)) process->on_started(started.pid);
}

void AgentHost::on_message(const StartFailed& failed) {
  if (RemoteProcess* process = process_of(failed.rank)) {
    process->on_exit({.code = kNotStarted, .detail = failed.why, .never_began = true});
  }
}

void AgentHost::on_message(const Output& output) {
  if (RemoteProcess* process = process_of(output.rank)) {
    process->on_output(output.is_stderr ? OutputStream::kStderr : OutputStream::kStdout,
                       output.bytes);
  }
}

void AgentHost::on_message(const Dropped& dropped) {
  // The notice is a line of its own in place of the missing output. It goes to stdout, since the
  // last words on stderr are the rank's.
  if (RemoteProcess* process = process_of(dropped.rank)) {
    process->on_output(OutputStream::kStdout,
                       fmt::format("==== {} lines ({} bytes) of this rank are missing here: the "
                                   "connection to {} did not keep up\n",
                                   dropped.lines, dropped.bytes, name_));
  }
}

void AgentHost::on_message(const Exited& exited) {
  if (RemoteProcess* process = process_of(exited.rank)) {
    process->on_exit({.code = exited.code, .signal = exited.signal, .detail = exited.detail});
  }
}

void AgentHost::on_message(const HostAnswered& answered) {
  const auto question = questions_.find(answered.number);
  if (question == questions_.end()) throw ProtocolError("an answer that nobody asked for");
  const auto done = std::move(question->second);
  questions_.erase(question);
  done(answered.answer);
}

void AgentHost::on_message(const Heartbeat& heartbeat) {
  for (const RankReport& report : heartbeat.ranks) {
    if (RemoteProcess* process = process_of(report.rank)) {
      process->on_status(report.status);
    }
  }
}

AgentHost::RemoteProcess* AgentHost::process_of(std::int32_t rank) {
  const auto found = processes_.find(rank);
  return found == processes_.end() ? nullptr : found->second;
}

void AgentHost::beat() {
  const auto now = steady_clock::now();
  // A process that was stopped for a while has to read first before it calls the other one silent.
  if (now - last_beat_ > 3 * options_.beat) last_heard_ = now;
  last_beat_ = now;
  const auto silence = std::chrono::duration<double>(now - last_heard_);
  if (phase_ == Phase::kServing && silence > options_.patience) {
    return lose(fmt::format("no word from its host {} for {:.1f} s", name_, silence.count()));
  }
  if (phase_ == Phase::kGreeting && silence > options_.hello_patience) {
    return fail_greeting(
        {.why = fmt::format("the agent has said nothing for {:.0f} s{}", silence.count(),
                            last_words_.empty() ? "" : "; " + last_words_)});
  }
  if (stream_->queued_bytes() < kMaxQueuedForBeat) send(Heartbeat{});
  timer_.expires_after(options_.beat);
  timer_.async_wait([this, alive = std::weak_ptr<const int>(alive_)](const auto& error) {
    if (!error && !alive.expired() && phase_ != Phase::kClosed) beat();
  });
}

void AgentHost::on_closed(const StreamEnd& end) {
  stderr_lines_.flush([this](LineKind, std::string_view line) {
    last_words_ = line;
    options_.on_words(line);
  });
  if (phase_ == Phase::kGreeting) {
    const bool missing = end.exit_code == kNotFound || end.exit_code == kNotExecutable;
    return fail_greeting({.is_missing = missing, .why = describe(end)});
  }
  lose(fmt::format("its host {} is gone: {}", name_, describe(end)));
}

std::string AgentHost::describe(const StreamEnd& end) const {
  std::string text = end.why;
  if (end.signal != 0) {
    text = "its agent was killed by " + signal_name(end.signal);
  } else if (end.exit_code) {
    text = fmt::format("its agent ended with exit code {}", *end.exit_code);
  }
  if (!last_words_.empty()) text += "; " + last_words_;
  return text;
}

void AgentHost::fail_greeting(GreetingFailure failure) {
  if (phase_ != Phase::kGreeting) return lose(failure.why);
  why_lost_ = failure.why;
  close_stream();
  std::exchange(on_greeted_, {})(std::move(failure));
}

void AgentHost::lose(const std::string& why) {
  if (phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kGreeting) return fail_greeting({.why = why});
  why_lost_ = why;
  close_stream();
  // Each callback may take processes away, or ask.
  const std::map<std::int32_t, RemoteProcess*> processes = processes_;
  for (const auto& [rank, process] : processes) {
    if (process_of(rank) == process) process->on_lost(why);
  }
  for (const auto& [number, done] : std::exchange(questions_, {}))
    done({.error = why});
}

void AgentHost::close_stream() {
  phase_ = Phase::kClosed;
  timer_.cancel();
  stream_->close();
}

}  // namespace dstrain::launcher
