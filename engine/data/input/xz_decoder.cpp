#include <cstdint>

#include <lzma.h>

#include "engine/data/input/decoder.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// xz -9 needs 65 MiB; the format allows 4 GiB.
constexpr std::uint64_t kMostMemory = std::uint64_t{2} << 30;

class XzDecoder final : public Decoder {
 public:
  XzDecoder() { begin(); }
  ~XzDecoder() override { lzma_end(&stream_); }

  Step decode(std::span<const char> packed, std::span<char> plain) override {
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
    stream_.avail_in = packed.size();
    stream_.next_out = reinterpret_cast<std::uint8_t*>(plain.data());
    stream_.avail_out = plain.size();
    const lzma_ret status = lzma_code(&stream_, LZMA_RUN);
    if (status != LZMA_OK && status != LZMA_STREAM_END && status != LZMA_BUF_ERROR) {
      throw DamagedData{reason_of(status), packed.size() - stream_.avail_in};
    }
    const Step step{.taken = packed.size() - stream_.avail_in,
                    .made = plain.size() - stream_.avail_out,
                    .ended = status == LZMA_STREAM_END};
    if (step.ended) {
      begin();
    }
    return step;
  }

 private:
  void begin() {
    check(lzma_stream_decoder(&stream_, kMostMemory, 0) == LZMA_OK, "no memory for xz");
  }

  static const char* reason_of(lzma_ret status) {
    switch (status) {
      case LZMA_FORMAT_ERROR:
        return "it is not xz";
      case LZMA_OPTIONS_ERROR:
        return "it needs unknown filters";
      case LZMA_MEM_ERROR:
        return "it needs more memory than is available";
      case LZMA_MEMLIMIT_ERROR:
        return "it needs more than 2 GiB of memory";
      default:
        return "incorrect data";
    }
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
};

}  // namespace

std::unique_ptr<Decoder> make_xz_decoder() {
  return std::make_unique<XzDecoder>();
}

}  // namespace dstrain
