// AgentListener: takes in agents that somebody else started (srun) and that connect to the launcher
// by themselves. agent_dial.h is their end.
//
// Only a caller who knows the job's secret is let in, and the secret never travels:
//
//   listener → agent     magic and version (8 bytes), nonce (16)
//   agent → listener     magic and version (8), nonce (16), length of its name (1), name,
//                        proof (32)
//   listener → agent     proof (32)
//
// A proof is the keyed hash of who speaks, both nonces and the name; so are the keys under which
// both go on (channel_seal.h). Strangers are bounded in number, bytes and seconds, and each host's
// are reported once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include <asio.hpp>

#include "launcher/agent/channel_seal.h"
#include "launcher/process/byte_stream.h"

namespace dstrain::launcher {

/// The hash of a message under the job's secret, 32 bytes: HMAC-SHA-256. The caller gives it, since
/// the job's secret is the caller's.
using KeyedHash = std::function<std::string(std::string_view message)>;

constexpr std::string_view kAgentMagic = "dsagent\x02";  // the last byte is the version
constexpr std::size_t kAgentNonceBytes = 16;
constexpr std::size_t kAgentProofBytes = 32;
constexpr std::size_t kMaxAgentNameBytes = 255;
/// Either end gives the other up when it has been silent for so long.
constexpr std::chrono::seconds kSilenceLimit{10};

/// The message that `who` ("agent" or "launcher") hashes.
std::string agent_challenge(std::string_view who,
                            std::string_view listener_nonce,
                            std::string_view agent_nonce,
                            std::string_view name);
/// The message that `who` hashes for the key of what it sends from then on.
std::string agent_key_challenge(std::string_view who,
                                std::string_view listener_nonce,
                                std::string_view agent_nonce,
                                std::string_view name);
/// Makes kAgentNonceBytes unpredictable bytes.
std::string make_agent_nonce();

struct AgentListenerOptions {
  std::string address{};   ///< to listen on; empty: all
  std::uint16_t port = 0;  ///< 0: any free one
  std::chrono::milliseconds proof_deadline{5000};
  std::size_t max_strangers = 4096;  ///< a newcomer displaces the oldest
  MakeChannelSeal make_seal{};       ///< empty, as in tests: bytes go as they are
};

/// An agent that has proved itself.
struct ArrivedAgent {
  std::string name;
  std::unique_ptr<ByteStream> stream;
};

class AgentListener {
 public:
  /// Called from the event loop.
  using OnAgent = std::function<void(ArrivedAgent agent)>;

  /// Throws std::system_error if it cannot listen.
  AgentListener(asio::io_context& loop,
                KeyedHash keyed_hash,
                OnAgent on_agent,
                AgentListenerOptions options = {});
  AgentListener(const AgentListener&) = delete;
  AgentListener& operator=(const AgentListener&) = delete;
  ~AgentListener();

  [[nodiscard]] std::uint16_t port() const;

 private:
  class Stranger;
  void accept_more();
  void refuse(Stranger& stranger, const std::string& why);

  asio::io_context& loop_;
  const KeyedHash keyed_hash_;
  const OnAgent on_agent_;
  const AgentListenerOptions options_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_;
  /// Callers in the order in which they came. Their own handlers share them.
  std::list<std::shared_ptr<Stranger>> strangers_;
  std::set<std::string> told_of_;
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);  // handlers hold weak ones
};

}  // namespace dstrain::launcher
