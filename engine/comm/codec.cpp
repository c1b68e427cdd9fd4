#include "engine/comm/codec.h"

namespace dstrain {
namespace {

/// Encodes every number as the nearest one of another dtype, or leaves it as it is.
class CastCodec final : public Codec {
 public:
  CastCodec(DType kept, DType wire) : kept_(kept), wire_(wire) {}

  [[nodiscard]] bool is_identity() const override { return kept_ == wire_; }
  [[nodiscard]] DType wire_dtype() const override { return wire_; }
  [[nodiscard]] std::int64_t wire_elements(std::int64_t numbers) const override { return numbers; }
  void encode(ConstTensor kept, Tensor wire, Ops& ops, Stream& stream) const override {
    ops.cast(kept, wire, stream);
  }
  void decode(ConstTensor wire, Tensor kept, Write write, Ops& ops, Stream& stream) const override {
    if (write == Write::kOverwrite) {
      ops.cast(wire, kept, stream);
    } else {
      ops.add_scaled(wire, 1.0F, kept, write, stream);
    }
  }

 private:
  const DType kept_;
  const DType wire_;
};

}  // namespace

std::unique_ptr<Codec> make_codec(DType kept, DType wire) {
  return std::make_unique<CastCodec>(kept, wire);
}

}  // namespace dstrain
