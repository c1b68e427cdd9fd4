#include "cmd/job_secret.h"

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/random.h>

#include "engine/comm/keyed_hash.h"

namespace dstrain {

std::string make_job_secret() {
  std::array<unsigned char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  std::string secret;
  for (const unsigned char byte : bytes)
    secret += fmt::format("{:02x}", byte);
  return secret;
}

launcher::KeyedHash hash_under(std::string secret) {
  return [secret = std::move(secret)](std::string_view message) {
    const Digest digest = hmac_sha256(secret, message);
    return std::string(digest.begin(), digest.end());
  };
}

}  // namespace dstrain
