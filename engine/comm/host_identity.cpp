#include "engine/comm/host_identity.h"

#include <algorithm>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/comm/keyed_hash.h"

namespace dstrain {
namespace {

std::string first_word_of(const char* path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

}  // namespace

HostIdentity host_identity(int number) {
  const std::string boot = first_word_of("/proc/sys/kernel/random/boot_id");
  const std::string nobody = first_word_of("/proc/sys/kernel/overflowuid");
  struct stat network {};
  struct stat users {};
  HostIdentity identity;
  if (boot.empty() || std::to_string(geteuid()) == nobody ||
      stat("/proc/self/ns/net", &network) != 0 || stat("/proc/self/ns/user", &users) != 0) {
    return identity;
  }
  const Digest digest = hmac_sha256(
      "dstrain host",
      fmt::format("{} {} {} {} {}", boot, network.st_ino, users.st_ino, geteuid(), number));
  std::copy_n(digest.begin(), identity.digest.size(), identity.digest.begin());
  return identity;
}

}  // namespace dstrain
