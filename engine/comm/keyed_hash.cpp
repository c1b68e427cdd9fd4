#include "engine/comm/keyed_hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "kernels/core/check.h"

namespace dstrain {

Digest hmac_sha256(std::string_view key, std::string_view message) {
  Digest digest{};
  unsigned bytes = digest.size();
  const auto* const done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                reinterpret_cast<const unsigned char*>(message.data()),
                                message.size(), digest.data(), &bytes);
  check(done != nullptr && bytes == digest.size(), "libcrypto computes no HMAC-SHA-256");
  return digest;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace dstrain
