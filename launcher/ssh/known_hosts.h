// KnownHosts: the host keys that the user trusts, from OpenSSH's known_hosts files: plain, hashed
// and wildcard names, "[host]:port", @revoked. Keys of certificate authorities make no host known
// here.
//
// A changed key is never accepted, whatever was asked for: that is the one thing which tells a
// reinstalled host from a stranger in the middle.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::launcher {

/// The key that a server presents.
struct HostKey {
  std::string type{};    ///< "ssh-ed25519"
  std::string base64{};  ///< as in known_hosts

  /// Reads a key from the bytes that cross the wire.
  static HostKey from_blob(std::string_view blob);
};

struct HostKeyVerdict {
  enum class Kind { kKnown, kUnknown, kChanged, kRevoked };
  Kind kind = Kind::kUnknown;
  std::string where{};  ///< "file:line" of the known, the old or the revoked key
  std::string type{};   ///< the type of that key
};

class KnownHosts {
 public:
  /// New keys go to the first of `files` if `num_writable` is not 0. A file that cannot be read has
  /// no keys.
  explicit KnownHosts(std::vector<std::string> files, std::size_t num_writable = 0);
  KnownHosts(const KnownHosts&) = delete;
  KnownHosts& operator=(const KnownHosts&) = delete;
  ~KnownHosts();

  /// `name` is "w0" or "[w0]:2222".
  [[nodiscard]] HostKeyVerdict judge(const std::string& name, const HostKey& key) const;
  /// The types of the keys that are known of a host: what to ask it for first.
  [[nodiscard]] std::vector<std::string> key_types(const std::string& name) const;
  /// Whether a certificate authority is trusted with it.
  [[nodiscard]] bool has_authority(const std::string& name) const;
  /// Makes the key known and writes it to the file at once. Returns nothing, or a sentence that
  /// says why it could not.
  std::string add(const std::string& name, const HostKey& key);

 private:
  struct Entry;
  void read(const std::string& path);
  /// The entries of the name itself, and behind them those of the host without the port.
  struct Found {
    std::vector<const Entry*> entries;
    std::size_t num_own = 0;
  };
  [[nodiscard]] Found entries_of(const std::string& name) const;

  std::string writable_;  ///< empty: none
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::string> authorities_;  ///< the names that each is trusted with
};

}  // namespace dstrain::launcher
