#include "launcher/ssh/host_key_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "launcher/ssh/shell_quoting.h"
#include "launcher/ssh/ssh_encoding.h"
#include "launcher/ssh/ssh_failure.h"

namespace dstrain::launcher {
namespace {

std::vector<std::string> supported_key_types(LIBSSH2_SESSION* session) {
  const char** list = nullptr;
  const int count = libssh2_session_supported_algs(session, LIBSSH2_METHOD_HOSTKEY, &list);
  std::vector<std::string> types;
  for (int i = 0; i < count; ++i)
    types.emplace_back(list[i]);
  if (count > 0) libssh2_free(session, list);
  return types;
}

std::string fingerprint(LIBSSH2_SESSION* session) {
  constexpr size_t kSha256Bytes = 32;
  const char* const digest = libssh2_hostkey_hash(session, LIBSSH2_HOSTKEY_HASH_SHA256);
  if (digest == nullptr) return "SHA256 unknown";
  const std::string text = to_base64({digest, kSha256Bytes});
  return "SHA256:" + text.substr(0, text.find('='));  // without padding, as OpenSSH shows it
}

/// The file of "file:line".
std::string file_of(const std::string& where) {
  return where.substr(0, where.rfind(':'));
}

[[noreturn]] void refuse_unknown(const SshHostSettings& host,
                                 const std::string& shown,
                                 bool has_authority) {
  std::string keyscan = "ssh-keyscan";
  if (host.port != 22) keyscan += fmt::format(" -p {}", host.port);
  throw SshFailure(
      fmt::format("its key is not known: {}", shown),
      fmt::format("compare this with ssh-keygen -lf on the host's /etc/ssh/ssh_host_*_key.pub; if "
                  "it is the same: --accept-new-host-keys, or {} {} >> {}",
                  keyscan, shell_quoted(host.host_name),
                  host.known_hosts.empty() ? "~/.ssh/known_hosts" : host.known_hosts.front()),
      has_authority ? "a certificate of the host's" : "");
}

[[noreturn]] void refuse_changed(const SshHostSettings& host,
                                 const std::string& shown,
                                 const std::string& type,
                                 const HostKeyVerdict& old) {
  const std::string name = host.known_as();
  if (old.type != type) {
    throw SshFailure(
        fmt::format(
            "its key is {}, but the known one is of type {} ({}), which it does not offer to "
            "this client",
            shown, old.type, old.where),
        fmt::format("compare the new key's fingerprint on the host; if it is the same, add the key "
                    "to {}",
                    file_of(old.where)));
  }
  throw SshFailure(
      fmt::format("its key HAS CHANGED: it shows {}, but {} has another one: the host was "
                  "reinstalled, or another machine answers in its place",
                  shown, old.where),
      fmt::format("ask who runs the host; only if the new fingerprint is right: ssh-keygen -R {} "
                  "-f {}",
                  shell_quoted(name), shell_quoted(file_of(old.where))));
}

}  // namespace

void prefer_known_key_types(LIBSSH2_SESSION* session,
                            const SshHostSettings& host,
                            const KnownHosts& known_hosts) {
  const std::vector<std::string> supported = supported_key_types(session);
  std::vector<std::string> order;
  for (const std::string& type : known_hosts.key_types(host.known_as())) {
    if (std::find(supported.begin(), supported.end(), type) != supported.end()) {
      order.push_back(type);
    }
  }
  if (order.empty()) return;
  for (const std::string& type : supported) {
    if (std::find(order.begin(), order.end(), type) == order.end()) order.push_back(type);
  }
  const std::string list = fmt::format("{}", fmt::join(order, ","));
  libssh2_session_method_pref(session, LIBSSH2_METHOD_HOSTKEY, list.c_str());
}

void check_host_key(LIBSSH2_SESSION* session,
                    const SshHostSettings& host,
                    KnownHosts& known_hosts,
                    bool accept_new) {
  size_t size = 0;
  int type_number = 0;
  const char* const blob = libssh2_session_hostkey(session, &size, &type_number);
  if (blob == nullptr) throw SshFailure("it shows no host key", "see the host's own log");
  const HostKey key = HostKey::from_blob({blob, size});
  const std::string shown = fmt::format("{} {}", key.type, fingerprint(session));
  const std::string name = host.known_as();
  const HostKeyVerdict verdict = known_hosts.judge(name, key);
  switch (verdict.kind) {
    case HostKeyVerdict::Kind::kKnown:
      return;
    case HostKeyVerdict::Kind::kRevoked:
      throw SshFailure(fmt::format("its key {} is marked as revoked in {}", shown, verdict.where),
                       "give the host a new key");
    case HostKeyVerdict::Kind::kChanged:
      refuse_changed(host, shown, key.type, verdict);
    case HostKeyVerdict::Kind::kUnknown:
      break;
  }
  if (!accept_new && host.host_key_policy == HostKeyPolicy::kStrict) {
    refuse_unknown(host, shown, known_hosts.has_authority(name));
  }
  spdlog::info("host={} new_host_key=\"{}\": accepted", host.written, shown);
  const std::string problem = known_hosts.add(name, key);
  if (!problem.empty()) spdlog::warn("{}", problem);
}

}  // namespace dstrain::launcher
