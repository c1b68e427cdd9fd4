#include "launcher/agent/agent_protocol.h"

#include <optional>

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

constexpr std::size_t kHeaderBytes = 5;

std::uint32_t length_in(std::string_view header) {
  WireReader reader(header.substr(0, 4));
  std::uint32_t length = 0;
  reader(length);
  return length;
}

void require_fit(std::size_t payload_bytes) {
  if (payload_bytes > kMaxPayloadBytes) {
    throw ProtocolError(fmt::format("a message of {} bytes, more than the {} that one may have",
                                    payload_bytes, kMaxPayloadBytes));
  }
}

template <typename Message>
std::string frame_of(Message message) {  // a copy: pass_fields() serves reading too
  WireWriter payload;
  message.pass_fields(payload);
  require_fit(payload.bytes().size());
  auto length = static_cast<std::uint32_t>(payload.bytes().size());
  auto type = Message::kType;
  WireWriter frame;
  frame(length, type);
  return frame.take() + payload.bytes();
}

template <typename Message>
Message message_in(std::string_view payload) {
  WireReader reader(payload);
  Message message;
  if constexpr (requires { message.protocol; }) {
    WireReader ahead(payload);
    ahead(message.protocol);
    if (message.protocol != kAgentProtocol) return message;
  }
  message.pass_fields(reader);
  reader.end();
  return message;
}

template <typename... Messages>
std::variant<Messages...> decode(const Frame& frame, std::variant<Messages...>* /*which*/) {
  std::optional<std::variant<Messages...>> decoded;
  const bool known =
      ((frame.type == Messages::kType &&
        (decoded.emplace(std::in_place_type<Messages>, message_in<Messages>(frame.payload)),
         true)) ||
       ...);
  if (!known) throw ProtocolError(fmt::format("a message of unknown type {}", frame.type));
  return std::move(*decoded);
}

}  // namespace

std::string encode(const ToAgent& message) {
  return std::visit([](const auto& m) { return frame_of(m); }, message);
}
std::string encode(const FromAgent& message) {
  return std::visit([](const auto& m) { return frame_of(m); }, message);
}

ToAgent decode_to_agent(const Frame& frame) {
  return decode(frame, static_cast<ToAgent*>(nullptr));
}
FromAgent decode_from_agent(const Frame& frame) {
  return decode(frame, static_cast<FromAgent*>(nullptr));
}

void FrameReader::feed(std::string_view bytes, const std::function<void(const Frame&)>& on_frame) {
  while (!bytes.empty()) {
    // Reads the header first, then as much as it asks for.
    std::size_t wanted = kHeaderBytes;
    if (partial_.size() >= kHeaderBytes) wanted += length_in(partial_);
    const std::size_t taken = std::min(wanted - partial_.size(), bytes.size());
    partial_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    if (partial_.size() < kHeaderBytes) return;
    const std::size_t length = length_in(partial_);
    require_fit(length);
    if (partial_.size() < kHeaderBytes + length) continue;
    const std::string whole = std::exchange(partial_, {});
    on_frame({.type = static_cast<std::uint8_t>(whole[4]),
              .payload = std::string_view(whole).substr(kHeaderBytes)});
  }
}

}  // namespace dstrain::launcher
