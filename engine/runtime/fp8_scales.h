// Fp8Scales: the scales of all tensors that this rank converts to 8 bits, one a tensor, and where
// they come from: the largest magnitudes of the steps before (AmaxHistory), over all micro-batches
// and all ranks, so that every layout has the scales of a single rank. As long as nothing has been
// seen of a tensor, a rank measures its own part before it is converted, so the first batch is run
// once for its maxima alone (Engine::see_first_batch).
//
// Scales are powers of two: another scale changes no digit of a number that is not near the ends of
// the format's range, so a scale that is larger than it need be costs range and no precision.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/plan/blueprint.h"
#include "engine/runtime/amax_history.h"
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace dstrain {

class Fp8Scales {
 public:
  /// From one scale to the next: cuBLASLt refuses those that are not at multiples of 16 bytes.
  static constexpr std::int64_t kPlace = 4;

  struct Options {
    std::int64_t history = 1;  ///< steps that are looked back on
    int margin = 0;            ///< every scale is 2^margin times what would just do
    /// The ratio of this layout's gradients (E5M2) to those of the mean over the whole batch:
    /// histories are of the latter, so that a run may resume in another layout.
    double gradient_factor = 1.0;
  };
  /// `whole_model` has every rank's tensors, in the same order on each. `amax` and `scales` are
  /// f32, [tensors] and [tensors, kPlace], of the blueprint's. All but the vector must outlive
  /// this.
  Fp8Scales(std::vector<ScaledTensorDecl> whole_model,
            const Blueprint& blueprint,
            Tensor amax,
            Tensor scales,
            Ops& ops,
            Device& device,
            const Options& options);

  /// Converts x_RC to 8 bits, by rows, transposed or both (Ops::quantize), in the stream's order;
  /// `tensor` is its number in the blueprint. Where it has to be measured first, waits for the
  /// stream.
  void quantize(int tensor, ConstTensor x_RC, Tensor q_RC, Tensor q_CR, Stream& stream);
  [[nodiscard]] ConstTensor scale(int tensor) const { return place_of(tensor); }
  /// Whether some tensors are still measured before they are converted.
  [[nodiscard]] bool measures() const { return unknown_ > 0; }

  /// Whether nothing has been seen of any tensor of the whole model; the same on all ranks.
  [[nodiscard]] bool is_new() const;

  /// Begins a step, forgetting the maxima of the one before.
  void begin_step(Stream& stream);
  /// The largest magnitudes that this rank saw since begin_step, of the whole model's tensors; 0 of
  /// those that it does not have, infinity for what was not finite; gradients divided by their
  /// factor. Waits for the stream.
  [[nodiscard]] std::vector<float> maxima(Stream& stream) const;
  /// Ends a step with the maxima over all ranks, the same on each, from which the next step's
  /// scales come.
  void end_step(const std::vector<float>& maxima, Stream& stream);

  /// The histories of the whole model by name, for checkpoints.
  using State = std::map<std::string, std::vector<AmaxPeak>>;
  [[nodiscard]] State state() const;
  /// Restores histories; tensors that `state` does not name are measured.
  void restore(const State& state, Stream& stream);

 private:
  [[nodiscard]] Tensor place_of(std::int64_t tensor) const {
    return scales_.flat(tensor * kPlace, tensor * kPlace + 1);
  }
  void measure(int tensor, ConstTensor x_RC, Stream& stream);
  /// `factor` is the ratio of what is converted to what `exponent` belongs to.
  [[nodiscard]] float scale_of(std::int32_t exponent, double factor) const;
  [[nodiscard]] double factor_of(DType dtype) const;
  void follow_histories(Stream& stream);

  std::vector<ScaledTensorDecl> whole_model_;
  std::vector<std::size_t> mine_;       ///< by the blueprint's number, which of whole_model_
  std::vector<AmaxHistory> histories_;  ///< of whole_model_
  Tensor amax_;
  Tensor scales_;
  Ops& ops_;
  Device& device_;
  Options options_;
  std::vector<float> on_host_;  ///< as scales_; read by copies that may be under way
  std::int64_t unknown_ = 0;    ///< of mine_, those whose history is empty
};

}  // namespace dstrain
