#include "cmd/launch/job_secret.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/launch/token_strength.h"
#include "cmd/rank/rank_env.h"
#include "engine/base/file_descriptor.h"
#include "engine/comm/keyed_hash.h"
#include "launcher/process/errors.h"

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

std::string read_job_token(const std::string& file) {
  using launcher::UsageError;
  constexpr const char* kHowTo =
      "dstrain token FILE makes one, for --token-file FILE on every node";
  std::string token = process_environment(kTokenVariable).value_or("");
  if (!file.empty()) {
    const FileDescriptor opened(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat facts {};
    if (!opened || fstat(opened.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
      throw UsageError(fmt::format("--token-file {}: {}; {}", file,
                                   opened ? "it is not a file" : std::strerror(errno), kHowTo));
    }
    if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
      throw UsageError(
          fmt::format("--token-file {}: others may read or write it; chmod 600 {}", file, file));
    }
    std::array<char, 4096> bytes{};
    const ssize_t size = read(opened.get(), bytes.data(), bytes.size());
    token.assign(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  } else if (token.empty()) {
    throw UsageError(
        fmt::format("nodes that are started by hand need a token that they share, from "
                    "--token-file or {}: {}",
                    kTokenVariable, kHowTo));
  }
  constexpr const char* kSpaces = " \t\r\n";
  const std::size_t begin = std::min(token.find_first_not_of(kSpaces), token.size());
  token = token.substr(begin, token.find_last_not_of(kSpaces) + 1 - begin);
  if (const std::string why = why_guessable(token); !why.empty()) {
    throw UsageError(fmt::format("{}: the token can be guessed: it {}; {}",
                                 file.empty() ? kTokenVariable : "--token-file " + file, why,
                                 kHowTo));
  }
  return token;
}

std::string derive_rank_secret(const std::string& shared, const std::string& salt) {
  std::string secret;
  for (const unsigned char byte :
       hmac_sha256(shared, "the ranks' secret" + std::string(1, '\0') + salt))
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
