// The frames that two ranks of a group send each other on their link, and the two machines that
// make a stream of bytes of them and them of a stream. Neither knows sockets: they say where the
// next bytes are, or should go, and are given how many went. Neither allocates for a frame.
//
//   header (16): channel, bytes, offset · payload · tag (frame_seal.h)
//
// What a header says is believed as far as it cannot do harm before the tag has been checked: the
// sink says where the payload may land, or refuses it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <sys/uio.h>

#include "engine/comm/frame_seal.h"

namespace dstrain {

/// Little-endian on the wire.
struct FrameHeader {
  std::uint32_t channel = 0;
  std::uint32_t bytes = 0;
  std::int64_t offset = 0;  ///< where it belongs in what the receiver has opened
};
static_assert(sizeof(FrameHeader) == 16);

/// What came is not what a member would send.
class FrameRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Receives the payload of frames.
class FrameSink {
 public:
  FrameSink() = default;
  FrameSink(const FrameSink&) = delete;
  FrameSink& operator=(const FrameSink&) = delete;
  virtual ~FrameSink() = default;
  /// Returns room for header.bytes, which may be written before the frame proves false. Throws
  /// FrameRefused where there is none.
  virtual std::byte* place_for(const FrameHeader& header) = 0;
  /// Called once the payload has arrived and been checked.
  virtual void arrived(const FrameHeader& header) = 0;
};

class FrameReader {
 public:
  static constexpr std::size_t kBufferBytes = 8 << 10;

  /// `sink` must outlive it.
  FrameReader(FrameSink& sink, FrameSeal seal);
  /// The places where the next bytes should be read to, in this order.
  [[nodiscard]] std::array<iovec, 2> room();
  /// Says how many bytes were read. Throws FrameRefused.
  void took(std::size_t bytes);

 private:
  bool read_header();
  bool read_payload();
  bool read_tag();
  [[nodiscard]] std::size_t buffered() const { return end_ - begin_; }

  enum class Part : std::uint8_t { kHeader, kPayload, kTag };
  FrameSink& sink_;
  FrameSeal seal_;
  std::vector<std::byte> buffer_;  ///< headers, tags, small payloads; the beginning of large ones
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  Part part_ = Part::kHeader;
  FrameHeader header_;
  std::byte* payload_ = nullptr;
  std::size_t payload_taken_ = 0;
};

class FrameWriter {
 public:
  /// Writes frames of up to `most_bytes`.
  FrameWriter(FrameSeal seal, std::int64_t most_bytes);
  /// Queues a frame. Its payload must stay untouched until `*left`, if given, is counted down by
  /// one.
  void add(const FrameHeader& header, const void* payload, std::int64_t* left);
  [[nodiscard]] bool empty() const { return first_ == queue_.size(); }
  /// The bytes to write next: the rest of the first frame. The writer must not be empty.
  [[nodiscard]] std::array<iovec, 3> next();
  void sent(std::size_t bytes);

 private:
  struct Frame {
    FrameHeader header;
    const std::byte* payload = nullptr;
    std::int64_t* left = nullptr;
  };
  FrameSeal seal_;
  std::vector<std::byte> encrypted_;  ///< the first frame's payload, where it is
  std::vector<Frame> queue_;
  std::size_t first_ = 0;
  bool sealed_ = false;      ///< the first frame has its tag
  std::size_t written_ = 0;  ///< of the first frame
  FrameSeal::Tag tag_{};
};

}  // namespace dstrain
