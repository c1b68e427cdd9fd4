#include <algorithm>
#include <limits>

#include <zlib.h>

#include "engine/data/input/decoder.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

class GzipDecoder final : public Decoder {
 public:
  GzipDecoder() {
    constexpr int kGzipAlone = 16;  // with the window's size, of up to 2^15 bytes
    check(inflateInit2(&stream_, MAX_WBITS + kGzipAlone) == Z_OK, "no memory for zlib");
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }

  Step decode(std::span<const char> packed, std::span<char> plain) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = as_count(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(plain.data());
    stream_.avail_out = as_count(plain.size());
    const uInt had = stream_.avail_in;
    const uInt room = stream_.avail_out;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    if (status == Z_MEM_ERROR) {
      throw DamagedData{"it needs more memory than is available"};
    }
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
      throw DamagedData{stream_.msg != nullptr ? stream_.msg : "it is not gzip",
                        had - stream_.avail_in};
    }
    const Step step{.taken = had - stream_.avail_in,
                    .made = room - stream_.avail_out,
                    .ended = status == Z_STREAM_END};
    if (step.ended) {
      inflateReset(&stream_);
    }
    return step;
  }

 private:
  static uInt as_count(std::size_t bytes) {
    return static_cast<uInt>(std::min<std::size_t>(bytes, std::numeric_limits<uInt>::max()));
  }

  z_stream stream_{};
};

}  // namespace

std::unique_ptr<Decoder> make_gzip_decoder() {
  return std::make_unique<GzipDecoder>();
}

}  // namespace dstrain
