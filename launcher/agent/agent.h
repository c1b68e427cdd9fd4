// Agent: one host's part of a job. It speaks the agent protocol over two descriptors (sshd's
// pipes), starts the host's ranks, streams their output back without ever keeping one of them
// waiting, and sees to it that none outlives the job:
//
//   the launcher says Bye, its channel ends, nothing comes over it for the launcher's patience,
//   something malformed comes, or a signal  ->  SIGTERM to the ranks, the grace, SIGKILL, sweep,
//   end
//
// It touches nothing but its own children: another job's agent on the same host is not disturbed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <asio.hpp>

#include "engine/base/file_descriptor.h"
#include "launcher/agent/agent_protocol.h"
#include "launcher/agent/channel_seal.h"
#include "launcher/agent/host_probe.h"
#include "launcher/agent/output_queue.h"
#include "launcher/process/local_process.h"

namespace dstrain::launcher {

struct AgentOptions {
  std::string version{};
  std::string build_id{};
  std::string address{};     ///< by which this host was reached
  std::vector<int> cores{};  ///< as AgentHello has them
  int num_usable_cores = 1;
  std::int64_t available_memory_bytes = 0;
  ProcessorReport processor{};
  HashFile hash_file{};
  LookAtGpus look_at_gpus{};
  /// Completes what the launcher sent, before the process is started.
  std::function<void(ProcessSpec&)> prepare = [](ProcessSpec&) {};
  std::unique_ptr<ChannelSeal> seal{};          ///< seals the two descriptors; nullptr over SSH
  std::size_t output_bytes_a_stream = 4 << 20;  ///< kept for a slow channel
};

class Agent {
 public:
  /// Takes over the descriptors: pipes or sockets. Throws std::system_error if they are neither.
  Agent(asio::io_context& loop, FileDescriptor in, FileDescriptor out, AgentOptions options);

  /// Serves until the launcher is done or gone and no rank is left. True if the launcher said Bye.
  bool run();
  /// The launcher's farewell, once run() has returned.
  [[nodiscard]] const std::optional<Bye>& farewell() const { return farewell_; }
  /// The signal that ended this agent, or 0.
  [[nodiscard]] int ended_by() const { return ended_by_; }

 private:
  enum class Phase { kServing, kEnding, kKilling, kFlushing, kDone };
  struct Member {
    std::unique_ptr<Process> process;
    bool has_ended = false;
  };

  void read_more();
  void on_bytes(std::string_view bytes);
  void on_message(const LauncherHello& hello);
  void on_message(const Start& start);
  void on_message(const Signal& signal);
  void on_message(const Sweep& sweep);
  void on_message(const AskHost& question);
  void on_message(const Bye& bye);
  void on_message(const Heartbeat& heartbeat);
  void write_more();
  [[nodiscard]] std::string sealed(std::string bytes) const;
  void on_plain_bytes(std::string_view bytes);
  [[nodiscard]] Heartbeat heartbeat() const;
  void beat();
  void wait_for_signal();
  void end(const std::string& why);
  void end_when_none_is_left();
  [[nodiscard]] bool any_running() const;
  void signal_all(int number) noexcept;

  asio::io_context& loop_;
  const AgentOptions options_;
  asio::posix::stream_descriptor in_;
  asio::posix::stream_descriptor out_;
  asio::signal_set signals_;
  asio::steady_timer beat_timer_;
  asio::steady_timer end_timer_;
  FrameReader frames_;
  OutputQueue queue_;
  std::string writing_;
  LocalSpawner spawner_;
  HostProbe probe_;
  std::map<std::int32_t, Member> members_;  // by rank
  std::optional<LauncherHello> launcher_;
  std::chrono::steady_clock::time_point last_heard_;
  std::chrono::steady_clock::time_point last_beat_;
  Phase phase_ = Phase::kServing;
  std::optional<Bye> farewell_;
  int ended_by_ = 0;
};

}  // namespace dstrain::launcher
