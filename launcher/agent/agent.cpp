#include "launcher/agent/agent.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "engine/base/amount_text.h"
#include "launcher/hosts/local_host.h"
#include "launcher/supervision/blame.h"

namespace dstrain::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBeat{1000};
// The patience until the launcher has said how patient it is.
constexpr milliseconds kHelloPatience{20'000};
// The time for what is still to be sent once no rank is left.
constexpr milliseconds kFlushPatience{2000};

}  // namespace

Agent::Agent(asio::io_context& loop, FileDescriptor in, FileDescriptor out, AgentOptions options)
    : loop_(loop),
      options_(std::move(options)),
      in_(loop, in.release()),
      out_(loop, out.release()),
      signals_(loop, SIGTERM, SIGINT, SIGHUP),
      beat_timer_(loop),
      end_timer_(loop),
      queue_(options_.output_bytes_a_stream),
      spawner_(loop),
      probe_(loop, options_.hash_file, options_.look_at_gpus),
      last_heard_(steady_clock::now()),
      last_beat_(last_heard_) {
  in_.non_blocking(true);
  out_.non_blocking(true);
}

bool Agent::run() {
  writing_ = kAgentPreamble;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  queue_.say(AgentHello{
      .version = options_.version,
      .build_id = options_.build_id,
      .hostname = own_hostname(),
      .address = options_.address,
      .pid = getpid(),
      .cores = options_.cores,
      .num_usable_cores = options_.num_usable_cores,
      .available_memory_bytes = options_.available_memory_bytes,
      .processor = options_.processor,
      .wall_clock_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count()});
  writing_ = sealed(writing_ + queue_.take());
  asio::async_write(out_, asio::buffer(writing_), [this](const asio::error_code& error, size_t) {
    writing_.clear();
    if (!error) write_more();
  });
  read_more();
  wait_for_signal();
  beat();
  while (phase_ != Phase::kDone)
    loop_.run_one();
  return farewell_.has_value();
}

void Agent::read_more() {
  in_.async_wait(asio::posix::stream_descriptor::wait_read, [this](asio::error_code error) {
    if (error || phase_ != Phase::kServing) return;
    std::array<char, 1 << 16> buffer;
    const size_t size = in_.read_some(asio::buffer(buffer), error);
    if (size > 0) on_bytes({buffer.data(), size});
    if (error == asio::error::eof) return end("the launcher's channel ended");
    if (error && error != asio::error::would_block && error != asio::error::interrupted) {
      return end("the launcher's channel: " + error.message());
    }
    read_more();
  });
}

void Agent::on_bytes(std::string_view bytes) {
  last_heard_ = steady_clock::now();
  try {
    if (options_.seal) {
      options_.seal->open(bytes, [this](std::string_view plain) { on_plain_bytes(plain); });
    } else {
      on_plain_bytes(bytes);
    }
  } catch (const ProtocolError& error) {
    end(fmt::format("the launcher sent {}", error.what()));
  }
}

void Agent::on_plain_bytes(std::string_view bytes) {
  frames_.feed(bytes, [this](const Frame& frame) {
    if (phase_ != Phase::kServing) return;
    const ToAgent message = decode_to_agent(frame);
    if (!launcher_ && !std::holds_alternative<LauncherHello>(message)) {
      throw ProtocolError(fmt::format("a message of type {} before the hello", frame.type));
    }
    std::visit([this](const auto& m) { on_message(m); }, message);
  });
}

std::string Agent::sealed(std::string bytes) const {
  return options_.seal ? options_.seal->seal(bytes) : bytes;
}

void Agent::on_message(const LauncherHello& hello) {
  if (hello.protocol != kAgentProtocol) {
    throw ProtocolError(fmt::format("a hello of protocol {}, and this agent speaks {}",
                                    hello.protocol, kAgentProtocol));
  }
  if (launcher_) throw ProtocolError("a second hello");
  launcher_ = hello;
}

void Agent::on_message(const Start& start) {
  ProcessSpec process = start.process;
  options_.prepare(process);
  if (process.takes_listener) spawner_.hold_listener(probe_.release_listener());
  const std::int32_t rank = process.rank;
  const auto known = members_.find(rank);
  if (known != members_.end() && !known->second.has_ended) {
    throw ProtocolError(fmt::format("a start of rank {}, which runs already", rank));
  }
  Member& member = members_[rank];
  member = {};
  try {
    member.process = spawner_.start(
        process, {.on_output =
                      [this, rank](OutputStream stream, std::string_view bytes) {
                        queue_.output(rank, stream == OutputStream::kStderr, bytes);
                        write_more();
                      },
                  .on_exit =
                      [this, rank](const ExitStatus& status) {
                        if (status.never_began) {
                          queue_.say_of_rank(rank, StartFailed{.rank = rank, .why = status.detail});
                        } else {
                          queue_.say_of_rank(rank, Exited{.rank = rank,
                                                          .code = status.code,
                                                          .signal = status.signal,
                                                          .detail = status.detail});
                        }
                        members_[rank].has_ended = true;
                        write_more();
                        if (phase_ != Phase::kServing) end_when_none_is_left();
                      }});
    queue_.say_of_rank(rank, Started{.rank = rank, .pid = member.process->pid()});
  } catch (const std::system_error& error) {
    member.has_ended = true;
    queue_.say_of_rank(rank, StartFailed{.rank = rank, .why = error.what()});
  }
  write_more();
}

void Agent::on_message(const Signal& signal) {
  const auto member = members_.find(signal.rank);
  if (member != members_.end() && !member->second.has_ended) {
    member->second.process->signal(signal.number);
  }
}

void Agent::on_message(const Sweep& /*sweep*/) {
  // Ranks that still run are children like those left behind, so a sweep now would end them; the
  // agent's end sweeps too.
  if (any_running()) return;
  spawner_.sweep();
  members_.clear();
}

void Agent::on_message(const AskHost& ask) {
  probe_.answer(ask.question, [this, number = ask.number](HostAnswer answer) {
    queue_.say(HostAnswered{.number = number, .answer = std::move(answer)});
    write_more();
  });
}

void Agent::on_message(const Bye& bye) {
  farewell_ = bye;
  end({});
}

void Agent::on_message(const Heartbeat& /*heartbeat*/) {}  // being heard is all it is for

void Agent::write_more() {
  if (!writing_.empty() || !out_.is_open()) return;
  writing_ = sealed(queue_.take());
  if (writing_.empty()) {
    if (phase_ == Phase::kFlushing) phase_ = Phase::kDone;
    return;
  }
  asio::async_write(out_, asio::buffer(writing_), [this](asio::error_code error, size_t) {
    writing_.clear();
    if (error) {
      out_.close(error);  // nobody listens; the end of the input says so as well
      end("the launcher no longer reads");
      if (phase_ == Phase::kFlushing) phase_ = Phase::kDone;
      return;
    }
    write_more();
  });
}

void Agent::beat() {
  const auto now = steady_clock::now();
  // A process that was stopped for a while has to read first before it calls the other one silent.
  if (now - last_beat_ > 3 * kBeat) last_heard_ = now;
  last_beat_ = now;
  const milliseconds patience = launcher_ ? milliseconds{launcher_->patience_ms} : kHelloPatience;
  if (phase_ == Phase::kServing && now - last_heard_ > patience) {
    end(fmt::format("no word from the launcher for {:.1f} s",
                    std::chrono::duration<double>(now - last_heard_).count()));
  }
  // One heartbeat waiting is enough: the channel is slow, not the ranks.
  if (!queue_.has_urgent()) {
    queue_.say(heartbeat());
    write_more();
  }
  beat_timer_.expires_after(kBeat);
  beat_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) beat();
  });
}

Heartbeat Agent::heartbeat() const {
  Heartbeat heartbeat;
  for (const auto& [rank, member] : members_) {
    if (member.has_ended) continue;
    if (auto status = member.process->status()) {
      heartbeat.ranks.push_back({.rank = rank, .status = std::move(*status)});
    }
  }
  return heartbeat;
}

void Agent::wait_for_signal() {
  signals_.async_wait([this](const asio::error_code& error, int number) {
    if (error) return;
    wait_for_signal();
    if (phase_ == Phase::kServing) ended_by_ = number;
    end("the agent got " + signal_name(number));
  });
}

void Agent::end(const std::string& why) {
  if (phase_ != Phase::kServing) return;
  phase_ = Phase::kEnding;
  const auto running = std::count_if(members_.begin(), members_.end(),
                                     [](const auto& entry) { return !entry.second.has_ended; });
  if (!why.empty()) spdlog::warn("{}; ending {}", why, counted(running, "rank"));
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // a stopped process would not get the signal
  const milliseconds grace{launcher_ ? launcher_->kill_grace_ms : 0};
  end_timer_.expires_after(grace);
  end_timer_.async_wait([this](const asio::error_code& error) {
    if (error || phase_ != Phase::kEnding) return;
    phase_ = Phase::kKilling;
    signal_all(SIGKILL);
  });
  end_when_none_is_left();
}

void Agent::end_when_none_is_left() {
  if (any_running() || phase_ == Phase::kFlushing || phase_ == Phase::kDone) return;
  phase_ = Phase::kFlushing;
  spawner_.sweep();
  if (!out_.is_open() || (queue_.empty() && writing_.empty())) {
    phase_ = Phase::kDone;
    return;
  }
  end_timer_.expires_after(kFlushPatience);
  end_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) phase_ = Phase::kDone;
  });
  write_more();
}

bool Agent::any_running() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return !entry.second.has_ended; });
}

void Agent::signal_all(int number) noexcept {
  for (auto& [rank, member] : members_) {
    if (!member.has_ended) member.process->signal(number);
  }
}

}  // namespace dstrain::launcher
