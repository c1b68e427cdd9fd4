#include <zstd.h>

#include "engine/data/input/decoder.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

class ZstdDecoder final : public Decoder {
 public:
  ZstdDecoder() : context_(ZSTD_createDCtx()) {
    check(context_ != nullptr, "no memory for zstd");
    // Dumps are often made with --long=31: the frame says so, and takes 2 GiB to be read.
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax,
                           ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }

  Step decode(std::span<const char> packed, std::span<char> plain) override {
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer out{plain.data(), plain.size(), 0};
    const std::size_t left = ZSTD_decompressStream(context_.get(), &out, &in);
    if (ZSTD_isError(left) != 0) {
      throw DamagedData{ZSTD_getErrorName(left)};
    }
    return {.taken = in.pos, .made = out.pos, .ended = left == 0};
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_;
};

}  // namespace

std::unique_ptr<Decoder> make_zstd_decoder() {
  return std::make_unique<ZstdDecoder>();
}

}  // namespace dstrain
