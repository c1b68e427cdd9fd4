#include "engine/comm/wire_keys.h"

#include <algorithm>
#include <memory>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/random.h>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

OSSL_PARAM bytes_parameter(const char* key, std::string_view bytes) {
  return OSSL_PARAM_construct_octet_string(key, const_cast<char*>(bytes.data()), bytes.size());
}

}  // namespace

WireKeys::~WireKeys() {
  for (WireKey* const key : {&dialer_proof, &acceptor_proof, &from_dialer, &from_acceptor}) {
    OPENSSL_cleanse(key->data(), key->size());
  }
}

std::string make_nonce(std::size_t bytes) {
  std::string nonce(bytes, '\0');
  const ssize_t got = getrandom(nonce.data(), nonce.size(), 0);
  check(got == static_cast<ssize_t>(nonce.size()), "getrandom gave {} bytes", got);
  return nonce;
}

WireKeys derive_wire_keys(std::string_view secret,
                          std::string_view subject,
                          std::string_view acceptor_nonce,
                          std::string_view dialer_nonce) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kind(
      EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      EVP_KDF_CTX_new(kind.get()), EVP_KDF_CTX_free);
  const std::string salt = std::string(acceptor_nonce).append(dialer_nonce);
  const std::array<OSSL_PARAM, 5> parameters{
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, const_cast<char*>("SHA256"), 0),
      bytes_parameter(OSSL_KDF_PARAM_KEY, secret), bytes_parameter(OSSL_KDF_PARAM_SALT, salt),
      bytes_parameter(OSSL_KDF_PARAM_INFO, subject), OSSL_PARAM_construct_end()};
  std::array<std::uint8_t, 4 * sizeof(WireKey)> derived{};
  check(context != nullptr &&
            EVP_KDF_derive(context.get(), derived.data(), derived.size(), parameters.data()) == 1,
        "libcrypto derives no keys by HKDF-SHA-256");
  WireKeys keys;
  const std::uint8_t* next = derived.data();
  for (WireKey* const key :
       {&keys.dialer_proof, &keys.acceptor_proof, &keys.from_dialer, &keys.from_acceptor}) {
    std::copy_n(next, key->size(), key->begin());
    next += key->size();
  }
  OPENSSL_cleanse(derived.data(), derived.size());
  return keys;
}

}  // namespace dstrain
