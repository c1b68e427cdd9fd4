#include "launcher/ssh/ssh_shortfall.h"

#include <filesystem>

#include <fmt/format.h>
#include <libssh2.h>

namespace dstrain::launcher {

std::string openssh_could_use(const LoginMeans& means) {
  std::error_code ignored;
  for (const std::string& type : means.key_types) {
    if (type.find("-cert-v01@") != std::string::npos) return "a certificate of the ssh-agent";
    if (type.starts_with("sk-")) return "a security key";
  }
  for (const std::string& path : means.identity_files) {
    // OpenSSH takes both by their names, without being told.
    for (const char* const suffix : {"-cert.pub", "_sk"}) {
      if (std::filesystem::exists(path + suffix, ignored)) return path + suffix;
    }
  }
  if (means.is_rsa_refused) {
    return fmt::format("an RSA key (libssh2 {} signs with SHA-1, which hosts refuse)",
                       libssh2_version(0));
  }
  for (const char* const method : {"gssapi-with-mic", "hostbased"}) {
    if (means.methods.find(method) != std::string::npos) return method;
  }
  return {};
}

}  // namespace dstrain::launcher
