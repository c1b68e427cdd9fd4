#include "launcher/ssh/ssh_authentication.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/ssh/key_file.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/shell_quoting.h"
#include "launcher/ssh/ssh_encoding.h"
#include "launcher/ssh/ssh_shortfall.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kPlainRsa = "ssh-rsa";

/// Finds the algorithm in the data to be signed: session, message number, user, service,
/// "publickey", true, algorithm.
std::string_view algorithm_in(std::string_view data) {
  take_ssh_string(data);
  data.remove_prefix(std::min<size_t>(1, data.size()));
  for (int i = 0; i < 3; ++i)
    take_ssh_string(data);
  data.remove_prefix(std::min<size_t>(1, data.size()));
  return take_ssh_string(data);
}

std::uint32_t agent_flags_for(std::string_view algorithm) {
  if (algorithm == "rsa-sha2-256") return 2;
  return algorithm == "rsa-sha2-512" ? 4 : 0;
}

}  // namespace

SshAuthentication::SshAuthentication(asio::io_context& loop,
                                     SshSession& session,
                                     const SshHostSettings& host,
                                     std::function<void()> wake)
    : session_(session), host_(host), wake_(std::move(wake)) {
  if (!host.agent_socket.empty()) agent_.emplace(loop, host.agent_socket);
}

bool SshAuthentication::advance() {
  if (step_ == Step::kAskMethods && !ask_methods()) return false;
  if (libssh2_userauth_authenticated(session_.get()) == 1) return true;  // by asking alone
  if (step_ == Step::kAskAgent && !ask_agent()) return false;
  return try_keys();
}

const char* SshAuthentication::waits_for() const {
  return (step_ == Step::kAskAgent && agent_asked_) || signing_ ? "the ssh-agent" : "the host";
}

bool SshAuthentication::ask_methods() {
  const char* const methods = libssh2_userauth_list(session_.get(), host_.user.data(),
                                                    static_cast<unsigned>(host_.user.size()));
  if (methods == nullptr) {
    if (libssh2_userauth_authenticated(session_.get()) == 1) return true;
    if (libssh2_session_last_errno(session_.get()) == LIBSSH2_ERROR_EAGAIN) return false;
    throw SshFailure(session_.why(), "see the host's own log (journalctl -u ssh)");
  }
  methods_ = methods;
  if (methods_.find("publickey") == std::string::npos) {
    throw SshFailure(fmt::format("the host accepts no keys, only: {}", methods_),
                     "set PubkeyAuthentication yes in its sshd_config", openssh_could_use());
  }
  step_ = Step::kAskAgent;
  return true;
}

bool SshAuthentication::ask_agent() {
  if (agent_ && !agent_asked_) {
    agent_asked_ = true;
    agent_->list_keys([this](const std::string& error, std::vector<AgentKey> keys) {
      agent_answered_ = true;
      agent_problem_ = error;
      agent_keys_ = std::move(keys);
      wake_();
    });
  }
  if (agent_ && !agent_answered_) return false;
  choose_keys();
  step_ = Step::kTryKeys;
  return true;
}

/// Tries the agent's keys before files, and among those first the ones that the configuration
/// names, since a server counts attempts, and closes after six.
void SshAuthentication::choose_keys() {
  std::vector<Key> files;
  for (const std::string& path : host_.identity_files) {
    const KeyFile file = inspect_key_file(path);
    const bool in_agent = std::any_of(agent_keys_.begin(), agent_keys_.end(), [&](const auto& k) {
      return !file.public_blob.empty() && k.blob == file.public_blob;
    });
    if (in_agent) {
      keys_.push_back({fmt::format("{} (agent)", path), file.public_blob, true, {}});
    } else if (file.state == KeyFile::State::kUsable) {
      files.push_back({path, file.public_blob, false, path});
    } else if (file.state != KeyFile::State::kMissing) {
      tried_.push_back(fmt::format("{} {}", path, file.problem));
      any_encrypted_ = any_encrypted_ || file.state == KeyFile::State::kEncrypted;
    }
  }
  for (const AgentKey& key : agent_keys_) {
    const bool chosen =
        std::any_of(keys_.begin(), keys_.end(), [&](const Key& k) { return k.blob == key.blob; });
    if (!chosen && !host_.identities_only) {
      keys_.push_back({fmt::format("{} (agent)", key.comment), key.blob, true, {}});
    }
  }
  keys_.insert(keys_.end(), files.begin(), files.end());
}

bool SshAuthentication::try_keys() {
  for (; next_key_ < keys_.size(); ++next_key_) {
    const Key& key = keys_[next_key_];
    const int result = try_key(key);
    if (result == 0) return true;
    if (result == LIBSSH2_ERROR_EAGAIN) return false;
    signing_ = false;
    signature_.reset();
    switch (result) {
      case LIBSSH2_ERROR_AUTHENTICATION_FAILED:
        tried_.push_back(fmt::format("{}: not accepted", key.name));
        any_rsa_refused_ = any_rsa_refused_ || HostKey::from_blob(key.blob).type == kPlainRsa;
        break;
      case LIBSSH2_ERROR_PUBLICKEY_UNVERIFIED:
        if (!signing_problem_.empty()) {
          tried_.push_back(fmt::format("{}: {}", key.name, signing_problem_));
          signing_problem_.clear();
          break;
        }
        [[fallthrough]];
      case LIBSSH2_ERROR_FILE:
      case LIBSSH2_ERROR_METHOD_NONE:
        tried_.push_back(fmt::format("{}: {}", key.name, session_.why()));
        break;
      default:
        tried_.push_back(fmt::format("{}: {}", key.name, session_.why()));
        fail(fmt::format("{} after {} of {} keys", session_.why(), next_key_ + 1, keys_.size()));
    }
  }
  fail("no key was accepted");
}

int SshAuthentication::try_key(const Key& key) {
  if (!key.of_agent) {
    return libssh2_userauth_publickey_fromfile_ex(session_.get(), host_.user.data(),
                                                  static_cast<unsigned>(host_.user.size()), nullptr,
                                                  key.path.c_str(), nullptr);
  }
  void* self = this;
  const auto callback = [](LIBSSH2_SESSION*, unsigned char** signature, size_t* size,
                           const unsigned char* data, size_t data_size, void** abstract) {
    return static_cast<SshAuthentication*>(*abstract)->sign(
        signature, size, {reinterpret_cast<const char*>(data), data_size});
  };
  return libssh2_userauth_publickey(session_.get(), host_.user.c_str(),
                                    reinterpret_cast<const unsigned char*>(key.blob.data()),
                                    key.blob.size(), callback, &self);
}

/// Called by libssh2, and again after the agent's answer.
int SshAuthentication::sign(unsigned char** signature, size_t* size, std::string_view data) {
  if (!signing_) {
    signing_ = true;
    agent_->sign(keys_[next_key_].blob, data, agent_flags_for(algorithm_in(data)),
                 [this](const std::string& error, std::string bytes) {
                   if (!error.empty()) signing_problem_ = "the agent " + error;
                   signature_ = std::move(bytes);
                   wake_();
                 });
  }
  if (!signature_) return LIBSSH2_ERROR_EAGAIN;
  if (!signing_problem_.empty()) return -1;
  *signature = static_cast<unsigned char*>(std::malloc(signature_->size()));  // libssh2 frees it
  if (*signature == nullptr) return -1;
  std::memcpy(*signature, signature_->data(), signature_->size());
  *size = signature_->size();
  signing_ = false;
  return 0;
}

void SshAuthentication::fail(const std::string& what) const {
  std::vector<std::string> report = tried_;
  if (!agent_) {
    report.emplace_back("no agent (SSH_AUTH_SOCK is not set)");
  } else if (!agent_problem_.empty()) {
    report.push_back(fmt::format("the agent at {}: {}", host_.agent_socket, agent_problem_));
  } else if (agent_keys_.empty()) {
    report.emplace_back("the agent has no keys");
  }
  if (keys_.empty() && tried_.empty()) {
    report.push_back(fmt::format("no key file ({})", fmt::join(host_.identity_files, ", ")));
  }
  std::string fix = fmt::format("ssh-copy-id -p {} {}", host_.port,
                                shell_quoted(fmt::format("{}@{}", host_.user, host_.host_name)));
  if (any_encrypted_) {
    fix = "start an agent and give it the key: eval $(ssh-agent) && ssh-add, then launch again";
  } else if (any_rsa_refused_) {
    fix = fmt::format(
        "libssh2 {} signs with RSA keys only in a way that servers refuse today; make an ed25519 "
        "key (ssh-keygen -t ed25519), then: {}",
        libssh2_version(0), fix);
  } else if (keys_.size() > 5) {
    fix = "name the one key to use: IdentityFile and IdentitiesOnly yes in ~/.ssh/config";
  }
  throw SshFailure(fmt::format("user {}: {}; tried: {}", host_.user, what, fmt::join(report, "; ")),
                   fix, openssh_could_use());
}

std::string SshAuthentication::openssh_could_use() const {
  LoginMeans means{.methods = methods_,
                   .key_types = {},
                   .identity_files = host_.identity_files,
                   .is_rsa_refused = any_rsa_refused_};
  for (const Key& key : keys_)
    means.key_types.push_back(HostKey::from_blob(key.blob).type);
  return launcher::openssh_could_use(means);
}

}  // namespace dstrain::launcher
