#include "engine/comm/frame_seal.h"

#include <cstring>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

void must(int status) {
  check(status == 1, "libcrypto computes no ChaCha20-Poly1305");
}

}  // namespace

FrameSeal::FrameSeal(Sealing sealing, const WireKey& key, End end) : sealing_(sealing), end_(end) {
  if (sealing_ == Sealing::kNone) {
    return;
  }
  context_.reset(EVP_CIPHER_CTX_new());
  must(EVP_CipherInit_ex(context_.get(), EVP_chacha20_poly1305(), nullptr, key.data(), nullptr,
                         end_ == End::kSeals ? 1 : 0));
}

void FrameSeal::start_frame() {
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data() + 4, &frame_, sizeof frame_);
  ++frame_;
  must(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1));
}

void FrameSeal::seal(std::span<const std::byte> header,
                     std::span<const std::byte> payload,
                     std::byte* sealed,
                     Tag& tag) {
  if (sealing_ == Sealing::kNone) {
    return;
  }
  start_frame();
  int bytes = 0;
  must(EVP_EncryptUpdate(context_.get(), nullptr, &bytes, raw(header.data()),
                         static_cast<int>(header.size())));
  if (!payload.empty()) {
    must(EVP_EncryptUpdate(context_.get(), sealing_ == Sealing::kEncrypted ? raw(sealed) : nullptr,
                           &bytes, raw(payload.data()), static_cast<int>(payload.size())));
  }
  std::array<unsigned char, kMostTagBytes> nothing{};
  must(EVP_EncryptFinal_ex(context_.get(), nothing.data(), &bytes));
  must(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()),
                           tag.data()));
}

bool FrameSeal::open(std::span<const std::byte> header,
                     std::span<std::byte> payload,
                     const std::byte* tag) {
  if (sealing_ == Sealing::kNone) {
    return true;
  }
  start_frame();
  int bytes = 0;
  must(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(kMostTagBytes),
                           const_cast<std::byte*>(tag)));
  must(EVP_DecryptUpdate(context_.get(), nullptr, &bytes, raw(header.data()),
                         static_cast<int>(header.size())));
  if (!payload.empty()) {
    must(EVP_DecryptUpdate(context_.get(),
                           sealing_ == Sealing::kEncrypted ? raw(payload.data()) : nullptr, &bytes,
                           raw(payload.data()), static_cast<int>(payload.size())));
  }
  std::array<unsigned char, kMostTagBytes> nothing{};
  return EVP_DecryptFinal_ex(context_.get(), nothing.data(), &bytes) == 1;
}

}  // namespace dstrain
