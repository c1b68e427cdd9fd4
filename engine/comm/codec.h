// Codec: how numbers travel between ranks, where that is not how they are kept. It says how much
// memory they take on the wire, and converts there and back; what is done with them on the way is
// the strategy's business. A new one is a file of its own and a line in make_codec.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/ops.h"

namespace dstrain {

class Codec {
 public:
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  /// Whether numbers travel as they are kept, so that no memory is needed for converting them.
  [[nodiscard]] virtual bool is_identity() const = 0;
  [[nodiscard]] virtual DType wire_dtype() const = 0;
  /// The number of elements of wire_dtype() that `numbers` numbers become.
  [[nodiscard]] virtual std::int64_t wire_elements(std::int64_t numbers) const = 0;
  /// `wire` has wire_elements(kept.numel()) elements.
  virtual void encode(ConstTensor kept, Tensor wire, Ops& ops, Stream& stream) const = 0;
  /// Writes or adds what came over the wire.
  virtual void decode(
      ConstTensor wire, Tensor kept, Write write, Ops& ops, Stream& stream) const = 0;
};

/// Makes the codec for numbers that are kept in one dtype and summed over the ranks in another, or
/// the same one.
std::unique_ptr<Codec> make_codec(DType kept, DType wire);

}  // namespace dstrain
