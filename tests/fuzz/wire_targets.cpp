#include "tests/fuzz/wire_targets.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "engine/comm/handshake.h"
#include "engine/comm/link_frames.h"
#include "engine/comm/store_requests.h"

namespace dstrain::fuzz {
namespace {

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Room for some bytes on each of two channels, exactly as large as it says.
class Rooms final : public FrameSink {
 public:
  std::byte* place_for(const FrameHeader& header) override {
    if (header.channel > 1 || header.offset < 0 ||
        header.offset > kRoomBytes - std::int64_t{header.bytes}) {
      throw FrameRefused("no room");
    }
    return rooms_[header.channel].get() + header.offset;
  }
  void arrived(const FrameHeader& /*header*/) override { ++believed; }

  int believed = 0;

 private:
  static constexpr std::int64_t kRoomBytes = 300;
  std::unique_ptr<std::byte[]> rooms_[2] = {std::make_unique<std::byte[]>(kRoomBytes),
                                            std::make_unique<std::byte[]>(kRoomBytes)};
};

/// How many frames were believed.
int read_frames(Bytes bytes, std::size_t piece, FrameSeal seal) {
  Rooms rooms;
  FrameReader reader(rooms, std::move(seal));
  try {
    while (!bytes.empty()) {
      std::size_t took = 0;
      for (const iovec& part : reader.room()) {
        const std::size_t count = std::min({part.iov_len, piece, bytes.size() - took});
        if (count > 0) {
          std::memcpy(part.iov_base, bytes.data() + took, count);
        }
        took += count;
        if (count < part.iov_len) break;  // as a socket fills them
      }
      reader.took(took);
      bytes = bytes.subspan(took);
    }
  } catch (const FrameRefused&) {
  }
  return rooms.believed;
}

}  // namespace

void handshake(Bytes bytes) {
  constexpr std::string_view kMagic = "dslink \x01";
  AcceptingHandshake acceptor(kMagic);
  std::string_view left = text_of(bytes);
  while (!left.empty() && acceptor.wanted() > 0) {
    const std::string_view piece = left.substr(0, std::min<std::size_t>(acceptor.wanted(), 7));
    if (!acceptor.take(piece)) break;
    left.remove_prefix(piece.size());
  }
  if (acceptor.wanted() == 0 && acceptor.judge("secret", "subject")) {
    throw std::logic_error("somebody got in who does not know the secret");
  }
  DialingHandshake dialer(kMagic, "secret", "subject", 1);
  for (left = text_of(bytes); !left.empty() && dialer.wanted() > 0;) {
    const std::string_view piece = left.substr(0, std::min<std::size_t>(dialer.wanted(), 7));
    if (dialer.take(piece) == DialingHandshake::State::kDone) {
      throw std::logic_error("somebody was believed who does not know the secret");
    }
    left.remove_prefix(piece.size());
  }
}

void frames(Bytes bytes) {
  if (bytes.empty()) return;
  const std::size_t piece = 1 + static_cast<std::size_t>(bytes[0]);
  bytes = bytes.subspan(1);
  (void)read_frames(bytes, piece, FrameSeal());
  for (const Sealing sealing : {Sealing::kAuthenticated, Sealing::kEncrypted}) {
    if (read_frames(bytes, piece, FrameSeal(sealing, WireKey{}, FrameSeal::End::kOpens)) > 0) {
      throw std::logic_error("a frame was believed that bears no seal");
    }
  }
}

void store(Bytes bytes) {
  StoreClient client;
  StoreRequests requests([](StoreClient&, store_protocol::Status, std::string_view) {});
  constexpr std::size_t kMostRequests = 64;
  for (std::size_t i = 0; i < kMostRequests && bytes.size() >= 2; ++i) {
    const auto length = static_cast<std::size_t>(bytes[0]) | static_cast<std::size_t>(bytes[1])
                                                                 << 8;
    const Bytes request = bytes.subspan(2, std::min(length, bytes.size() - 2));
    if (!requests.answer(client, text_of(request))) return;  // its connection would be closed
    requests.forget(client);
    bytes = bytes.subspan(2 + request.size());
  }
  requests.pass_deadlines(std::chrono::steady_clock::now());
}

}  // namespace dstrain::fuzz
