// AgentProtocol: what the launcher and the agent of a host say to each other over one ByteStream.
//
//   agent     preamble, Hello                      the preamble tells it from what a login prints
//   launcher  Hello                                each ends the connection over another protocol
//   launcher  Question …                           answered in any order, by number
//   launcher  Start, Signal, Sweep
//   agent     Started | StartFailed, Output, Dropped, Exited, of every rank in this order
//   both      Heartbeat                            every second; silence means that the other
//                                                  is gone
//   launcher  Bye                                  the agent ends what still runs, and itself
//
// A frame is {u32 length of the payload, u8 type, payload}, the payload at most 1 MiB. A frame that
// is unknown, too long, malformed or out of place ends the connection, with a sentence.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/wire.h"
#include "launcher/agent/host_question.h"
#include "launcher/process/job.h"
#include "launcher/process/process.h"
#include "launcher/supervision/rank_status.h"

namespace dstrain::launcher {

/// Changes with every change of a message.
constexpr std::uint32_t kAgentProtocol = 7;
/// The agent's first bytes.
constexpr std::string_view kAgentPreamble("\0dstrain agent\n", 15);
constexpr std::size_t kMaxPayloadBytes = 1 << 20;
/// The most bytes of one Output: few enough for the ranks of a host to take turns.
constexpr std::size_t kMaxOutputBytes = 1 << 16;

// --- launcher to agent ---

struct LauncherHello {
  static constexpr std::uint8_t kType = 1;
  std::uint32_t protocol = kAgentProtocol;
  std::uint32_t patience_ms = 0;    ///< after so long without a frame the launcher is gone
  std::uint32_t kill_grace_ms = 0;  ///< between SIGTERM and SIGKILL, when the agent ends the ranks
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(protocol, patience_ms, kill_grace_ms);
  }
};

struct Start {
  static constexpr std::uint8_t kType = 2;
  ProcessSpec process;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(process.host, process.rank, process.local_rank, process.executable, process.argv,
         process.environment, process.unset, process.cores, process.working_folder,
         process.takes_listener);
  }
};

struct Signal {
  static constexpr std::uint8_t kType = 3;
  std::int32_t rank = 0;
  std::int32_t number = 0;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(rank, number);
  }
};

/// All ranks have ended: end what they left behind.
struct Sweep {
  static constexpr std::uint8_t kType = 4;
  template <typename Wire>
  void pass_fields(Wire&) {}
};

struct AskHost {
  static constexpr std::uint8_t kType = 5;
  std::uint32_t number = 0;
  HostQuestion question;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(number, question);
  }
};

/// The agent ends what still runs, and itself. An agent that a person started shows there how the
/// run ended.
struct Bye {
  static constexpr std::uint8_t kType = 6;
  std::int32_t exit_code = 0;  ///< the launcher's
  std::string why{};           ///< one sentence; empty: there is nothing to say
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(exit_code, why);
  }
};

// --- both ways ---

/// A rank's activity according to its status page.
struct RankReport {
  std::int32_t rank = 0;
  RankStatus status{};
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(rank, status);
  }
};

struct Heartbeat {
  static constexpr std::uint8_t kType = 16;
  std::vector<RankReport> ranks;  ///< none from the launcher
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(ranks);
  }
};

// --- agent to launcher ---

struct ProcessorReport {
  std::string model{};
  bool multiplies_bf16 = false;
  std::int64_t memory_bytes = 0;  ///< the host's, or what a control group grants

  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(model, multiplies_bf16, memory_bytes);
  }
};

struct AgentHello {
  static constexpr std::uint8_t kType = 32;
  std::uint32_t protocol = kAgentProtocol;
  std::string version{};   ///< "0.1.0"
  std::string build_id{};  ///< tells the agent's binary from others
  std::string hostname{};
  std::string address{};  ///< numeric; this host was reached by it; empty: unknown
  std::int64_t pid = 0;
  std::vector<int> cores{};           ///< ranks may use these; neighbours stand together
  std::int32_t num_usable_cores = 1;  ///< cores at a time; fewer under a container's quota
  std::int64_t available_memory_bytes = 0;
  ProcessorReport processor{};
  std::int64_t wall_clock_us = 0;  ///< since 1970
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(protocol, version, build_id, hostname, address, pid, cores, num_usable_cores,
         available_memory_bytes, processor, wall_clock_us);
  }
};

struct Started {
  static constexpr std::uint8_t kType = 33;
  std::int32_t rank = 0;
  std::int64_t pid = 0;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(rank, pid);
  }
};

struct StartFailed {
  static constexpr std::uint8_t kType = 34;
  std::int32_t rank = 0;
  std::string why;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(rank, why);
  }
};

struct Output {
  static constexpr std::uint8_t kType = 35;
  std::int32_t rank = 0;
  bool is_stderr = false;
  std::string bytes;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(rank, is_stderr, bytes);
  }
};

/// Output that was lost at this place: the channel did not keep up with the rank.
struct Dropped {
  static constexpr std::uint8_t kType = 36;
  std::int32_t rank = 0;
  std::int64_t bytes = 0;
  std::int64_t lines = 0;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(rank, bytes, lines);
  }
};

struct Exited {
  static constexpr std::uint8_t kType = 37;
  std::int32_t rank = 0;
  std::int32_t code = 0;
  std::int32_t signal = 0;
  std::string detail;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(rank, code, signal, detail);
  }
};

struct HostAnswered {
  static constexpr std::uint8_t kType = 38;
  std::uint32_t number = 0;
  HostAnswer answer;
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(number, answer);
  }
};

using ToAgent = std::variant<LauncherHello, Start, Signal, Sweep, AskHost, Bye, Heartbeat>;
using FromAgent = std::
    variant<AgentHello, Started, StartFailed, Output, Dropped, Exited, HostAnswered, Heartbeat>;

/// A whole frame. Throws ProtocolError if the message is longer than a frame may be.
std::string encode(const ToAgent& message);
std::string encode(const FromAgent& message);

struct Frame {
  std::uint8_t type = 0;
  std::string_view payload;
};
/// Throw ProtocolError. A hello of another protocol is read no further than its number.
ToAgent decode_to_agent(const Frame& frame);
FromAgent decode_from_agent(const Frame& frame);

/// Bytes as they come, cut into frames. Holds no more than one frame.
class FrameReader {
 public:
  /// Throws ProtocolError as soon as a frame's beginning says that it will be too long.
  void feed(std::string_view bytes, const std::function<void(const Frame&)>& on_frame);

 private:
  std::string partial_;
};

}  // namespace dstrain::launcher
