#include "launcher/ssh/ssh_encoding.h"

#include <memory>

#include <openssl/evp.h>

namespace dstrain::launcher {

std::optional<std::uint32_t> take_ssh_number(std::string_view& message) {
  if (message.size() < 4) return std::nullopt;
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i)
    number = number << 8 | static_cast<unsigned char>(message[i]);
  message.remove_prefix(4);
  return number;
}

std::string_view take_ssh_string(std::string_view& message) {
  const std::optional<std::uint32_t> size = take_ssh_number(message);
  if (!size || *size > message.size()) {
    message = {};
    return {};
  }
  const std::string_view text = message.substr(0, *size);
  message.remove_prefix(*size);
  return text;
}

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // libcrypto ends it with a null byte
  text.resize(static_cast<std::size_t>(EVP_EncodeBlock(
      reinterpret_cast<unsigned char*>(text.data()),
      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()))));
  return text;
}

std::string from_base64(std::string_view text) {
  const std::unique_ptr<EVP_ENCODE_CTX, void (*)(EVP_ENCODE_CTX*)> context(EVP_ENCODE_CTX_new(),
                                                                           EVP_ENCODE_CTX_free);
  EVP_DecodeInit(context.get());
  std::string bytes(text.size() + 3, '\0');
  auto* const out = reinterpret_cast<unsigned char*>(bytes.data());
  int size = 0;
  int rest = 0;
  if (EVP_DecodeUpdate(context.get(), out, &size,
                       reinterpret_cast<const unsigned char*>(text.data()),
                       static_cast<int>(text.size())) < 0 ||
      EVP_DecodeFinal(context.get(), out + size, &rest) < 0) {
    return {};
  }
  bytes.resize(static_cast<std::size_t>(size + rest));
  return bytes;
}

}  // namespace dstrain::launcher
