// SshAgentClient: asks the user's ssh-agent for its keys and for signatures, without waiting: a
// stopped agent, or one that asks its user for consent, holds up nobody else.
// (The protocol: draft-miller-ssh-agent. libssh2's own client blocks on its socket.)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <asio.hpp>

namespace dstrain::launcher {

struct AgentKey {
  std::string blob{};  ///< the public key, as it crosses the wire
  std::string comment{};
};

class SshAgentClient {
 public:
  SshAgentClient(asio::io_context& loop, std::string socket_path);
  SshAgentClient(const SshAgentClient&) = delete;
  SshAgentClient& operator=(const SshAgentClient&) = delete;
  /// No callback comes after this.
  ~SshAgentClient();

  /// `error` is empty, or a clause why there are no keys. One request at a time.
  void list_keys(std::function<void(std::string error, std::vector<AgentKey>)> done);
  /// The signature alone, without the name of its algorithm. `flags`: 2 or 4 for RSA with SHA-256
  /// or SHA-512.
  void sign(const std::string& key_blob,
            std::string_view data,
            std::uint32_t flags,
            std::function<void(std::string error, std::string signature)> done);

 private:
  class Exchange;
  /// Shared with the handlers that wait in the event loop.
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace dstrain::launcher
