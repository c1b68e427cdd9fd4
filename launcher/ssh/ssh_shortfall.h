// The means of login that OpenSSH's client has and libssh2 lacks. They are named where a login has
// failed, so that OpenSSH's client is asked only where it can do more.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dstrain::launcher {

struct LoginMeans {
  std::string methods{};                      ///< the host takes these: "publickey,password"
  std::vector<std::string> key_types{};       ///< of the keys tried: "ssh-ed25519"
  std::vector<std::string> identity_files{};  ///< as configured; need not exist
  bool is_rsa_refused = false;                ///< the host did not accept an RSA key
};

/// A noun for messages: "an RSA key"; empty if there is nothing of that kind.
std::string openssh_could_use(const LoginMeans& means);

}  // namespace dstrain::launcher
