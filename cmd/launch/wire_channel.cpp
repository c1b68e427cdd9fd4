#include "cmd/launch/wire_channel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "engine/base/wire.h"
#include "engine/comm/frame_seal.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

// {u32 bytes of the payload, little-endian; payload, encrypted; tag over both}.
constexpr std::size_t kHeaderBytes = sizeof(std::uint32_t);
constexpr std::size_t kMostPayloadBytes = std::size_t{1} << 16;

WireKey key_of(const std::string& bytes) {
  WireKey key{};
  check(bytes.size() == key.size(), "a key of {} bytes", bytes.size());
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

class EncryptedChannel final : public launcher::ChannelSeal {
 public:
  EncryptedChannel(const std::string& key_out, const std::string& key_in)
      : seals_(Sealing::kEncrypted, key_of(key_out), FrameSeal::End::kSeals),
        opens_(Sealing::kEncrypted, key_of(key_in), FrameSeal::End::kOpens) {}

  std::string seal(std::string_view plain) override {
    std::string crossing;
    for (; !plain.empty(); plain.remove_prefix(std::min(plain.size(), kMostPayloadBytes))) {
      const std::string_view payload = plain.substr(0, kMostPayloadBytes);
      const std::size_t begin = crossing.size();
      put_number(crossing, static_cast<std::uint32_t>(payload.size()));
      crossing += payload;
      auto* const frame = reinterpret_cast<std::byte*>(crossing.data() + begin);
      FrameSeal::Tag tag{};
      seals_.seal({frame, kHeaderBytes}, {frame + kHeaderBytes, payload.size()},
                  frame + kHeaderBytes, tag);
      crossing.append(reinterpret_cast<const char*>(tag.data()), seals_.tag_bytes());
    }
    return crossing;
  }

  void open(std::string_view bytes,
            const std::function<void(std::string_view plain)>& tell) override {
    partial_ += bytes;
    std::string plain;
    std::size_t at = 0;
    while (partial_.size() - at >= kHeaderBytes) {
      std::string_view header = std::string_view(partial_).substr(at);
      const std::size_t size = take_number<std::uint32_t>(header);
      if (size == 0 || size > kMostPayloadBytes) refuse();
      const std::size_t whole = kHeaderBytes + size + opens_.tag_bytes();
      if (partial_.size() - at < whole) break;
      auto* const frame = reinterpret_cast<std::byte*>(partial_.data() + at);
      if (!opens_.open({frame, kHeaderBytes}, {frame + kHeaderBytes, size},
                       frame + kHeaderBytes + size)) {
        refuse();
      }
      plain.append(partial_, at + kHeaderBytes, size);
      at += whole;
    }
    partial_.erase(0, at);
    if (!plain.empty()) tell(plain);  // last, since it may end this channel
  }

 private:
  [[noreturn]] static void refuse() {
    throw ProtocolError(
        "bytes that were changed on their way, or come from somebody who does not know the job's "
        "secret");
  }

  FrameSeal seals_;
  FrameSeal opens_;
  std::string partial_;
};

}  // namespace

launcher::MakeChannelSeal encrypted_channels() {
  return [](const std::string& key_out, const std::string& key_in) {
    return std::make_unique<EncryptedChannel>(key_out, key_in);
  };
}

}  // namespace dstrain
