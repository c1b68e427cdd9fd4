// SshAuthentication: logs one session in, with the agent's keys and then with key files. Never asks
// anybody anything. The keys that were tried are kept for the message in case none is accepted.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/ssh/ssh_agent_client.h"
#include "launcher/ssh/ssh_config.h"
#include "launcher/ssh/ssh_failure.h"
#include "launcher/ssh/ssh_session.h"

namespace dstrain::launcher {

class SshAuthentication {
 public:
  /// `wake` is called from the event loop when advance() can go on.
  SshAuthentication(asio::io_context& loop,
                    SshSession& session,
                    const SshHostSettings& host,
                    std::function<void()> wake);

  /// True once logged in; false if it waits for the socket or the agent. Throws SshFailure.
  bool advance();
  /// The party whose answer is missing, for a deadline's message: "the host" or "the ssh-agent".
  [[nodiscard]] const char* waits_for() const;

 private:
  struct Key {
    std::string name;  ///< as messages call it
    std::string blob;  ///< the public key; needed for the agent's
    bool of_agent = false;
    std::string path;
  };
  enum class Step { kAskMethods, kAskAgent, kTryKeys };

  bool ask_methods();
  bool ask_agent();
  void choose_keys();
  bool try_keys();
  int try_key(const Key& key);
  int sign(unsigned char** signature, size_t* size, std::string_view data);
  [[noreturn]] void fail(const std::string& what) const;
  [[nodiscard]] std::string openssh_could_use() const;

  SshSession& session_;
  const SshHostSettings& host_;
  std::function<void()> wake_;
  std::optional<SshAgentClient> agent_;
  Step step_ = Step::kAskMethods;

  bool agent_asked_ = false;
  bool agent_answered_ = false;
  std::string agent_problem_;
  std::vector<AgentKey> agent_keys_;

  std::vector<Key> keys_;
  size_t next_key_ = 0;
  bool signing_ = false;
  std::optional<std::string> signature_;
  std::string signing_problem_;
  std::string methods_;             ///< the methods that the host takes
  std::vector<std::string> tried_;  ///< "~/.ssh/id_ed25519: refused"
  bool any_encrypted_ = false;
  bool any_rsa_refused_ = false;
};

}  // namespace dstrain::launcher
