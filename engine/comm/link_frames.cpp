#include "engine/comm/link_frames.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace dstrain {
namespace {

static_assert(std::endian::native == std::endian::little);

std::span<const std::byte> bytes_of(const FrameHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

}  // namespace

FrameReader::FrameReader(FrameSink& sink, FrameSeal seal)
    : sink_(sink), seal_(std::move(seal)), buffer_(kBufferBytes) {}

// The rest of a payload goes straight to its place, and the bytes that follow it go into the
// buffer.
std::array<iovec, 2> FrameReader::room() {
  const iovec buffer{.iov_base = buffer_.data() + end_, .iov_len = buffer_.size() - end_};
  if (part_ == Part::kPayload) {
    return {iovec{.iov_base = payload_ + payload_taken_, .iov_len = header_.bytes - payload_taken_},
            buffer};
  }
  return {buffer, iovec{.iov_base = nullptr, .iov_len = 0}};
}

void FrameReader::took(std::size_t bytes) {
  if (part_ == Part::kPayload) {
    const std::size_t direct = std::min(bytes, header_.bytes - payload_taken_);
    payload_taken_ += direct;
    bytes -= direct;
  }
  end_ += bytes;
  for (bool more = true; more;) {
    switch (part_) {
      case Part::kHeader:
        more = read_header();
        break;
      case Part::kPayload:
        more = read_payload();
        break;
      case Part::kTag:
        more = read_tag();
        break;
    }
  }
  if (begin_ > 0) {  // of a header or a tag a part may be left
    const std::size_t left = buffered();
    std::memmove(buffer_.data(), buffer_.data() + begin_, left);
    begin_ = 0;
    end_ = left;
  }
}

bool FrameReader::read_header() {
  if (buffered() < sizeof header_) {
    return false;
  }
  std::memcpy(&header_, buffer_.data() + begin_, sizeof header_);
  begin_ += sizeof header_;
  payload_ = sink_.place_for(header_);
  payload_taken_ = 0;
  part_ = Part::kPayload;
  return true;
}

bool FrameReader::read_payload() {
  const std::size_t bytes = std::min(buffered(), header_.bytes - payload_taken_);
  if (bytes > 0) {
    std::memcpy(payload_ + payload_taken_, buffer_.data() + begin_, bytes);
    begin_ += bytes;
    payload_taken_ += bytes;
  }
  if (payload_taken_ < header_.bytes) {
    return false;
  }
  part_ = Part::kTag;
  return true;
}

bool FrameReader::read_tag() {
  if (buffered() < seal_.tag_bytes()) {
    return false;
  }
  if (!seal_.open(bytes_of(header_), {payload_, header_.bytes}, buffer_.data() + begin_)) {
    throw FrameRefused(
        "what it sent fails authentication: bytes were changed, lost, repeated or added on "
        "the way between the two");
  }
  begin_ += seal_.tag_bytes();
  part_ = Part::kHeader;
  sink_.arrived(header_);
  return true;
}

FrameWriter::FrameWriter(FrameSeal seal, std::int64_t most_bytes) : seal_(std::move(seal)) {
  if (seal_.sealing() == Sealing::kEncrypted) {
    encrypted_.resize(static_cast<std::size_t>(most_bytes));
  }
}

void FrameWriter::add(const FrameHeader& header, const void* payload, std::int64_t* left) {
  if (empty()) {
    queue_.clear();
    first_ = 0;
  }
  queue_.push_back({header, static_cast<const std::byte*>(payload), left});
}

std::array<iovec, 3> FrameWriter::next() {
  Frame& frame = queue_[first_];
  const std::size_t bytes = frame.header.bytes;
  if (!sealed_) {  // not sooner: here the payload comes into the cache, and is sent from there
    seal_.seal(bytes_of(frame.header), {frame.payload, bytes}, encrypted_.data(), tag_);
    sealed_ = true;
  }
  const std::byte* const payload =
      seal_.sealing() == Sealing::kEncrypted ? encrypted_.data() : frame.payload;
  std::array<iovec, 3> parts{iovec{.iov_base = &frame.header, .iov_len = sizeof frame.header},
                             iovec{.iov_base = const_cast<std::byte*>(payload), .iov_len = bytes},
                             iovec{.iov_base = tag_.data(), .iov_len = seal_.tag_bytes()}};
  std::size_t written = written_;
  for (iovec& part : parts) {
    const std::size_t gone = std::min(written, part.iov_len);
    part.iov_base = gone == 0 ? part.iov_base : static_cast<std::byte*>(part.iov_base) + gone;
    part.iov_len -= gone;
    written -= gone;
  }
  return parts;
}

void FrameWriter::sent(std::size_t bytes) {
  written_ += bytes;
  const Frame& frame = queue_[first_];
  if (written_ < sizeof frame.header + frame.header.bytes + seal_.tag_bytes()) {
    return;
  }
  if (frame.left != nullptr) {
    --*frame.left;
  }
  ++first_;
  written_ = 0;
  sealed_ = false;
}

}  // namespace dstrain
