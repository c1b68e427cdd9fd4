// Which elements dropout removes (Srivastava et al. 2014, "Dropout: a simple way to prevent neural
// networks from overfitting"): a pure function of the run's seed, the place in the model, the
// number of the sample and the element's coordinates in it. So every layout removes the same ones,
// nothing is stored for backward, and computing again removes them again.
//
// An element has two coordinates, `along` and `across`, within a plane. Four share the words of one
// counter: along = 16 a + 2 b + {0, 1, 8, 9}, so that vectors of neighbours across need four words
// each for sixteen along, and what a lane of a GPU's matrix product has along are words of one
// counter too.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/math/philox_rounds.h"

namespace dstrain {

/// The dropout of one sample at one place in the model.
struct SampleDropout {
  std::uint64_t key;        ///< of the place, drawn from the run's seed
  std::uint64_t sample;     ///< its number in the run
  std::uint32_t threshold;  ///< elements with smaller words become 0; 0: none do
  float factor;             ///< what the others are multiplied by
};

/// A probability in the form that words are compared with, to 2⁻³².
DSTRAIN_HD std::uint32_t dropout_threshold(float probability) {
  return static_cast<std::uint32_t>(static_cast<double>(probability) * 4294967296.0);
}

/// The dropout of sample `index` of a batch. first_sample is the number of its first one, low word
/// and high word; a negative high word means that nothing of the batch is dropped.
DSTRAIN_HD SampleDropout sample_dropout(std::uint64_t key,
                                        float probability,
                                        const std::int32_t* first_sample,
                                        std::int64_t index) {
  if (first_sample[1] < 0) {
    return {key, 0, 0, 1.0F};
  }
  const std::uint64_t first =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(first_sample[1])) << 32) |
      static_cast<std::uint32_t>(first_sample[0]);
  return {key, first + static_cast<std::uint64_t>(index), dropout_threshold(probability),
          1.0F / (1.0F - probability)};
}

/// Consecutive counters cover 16 elements along.
constexpr int kDropoutCounters = 4;
constexpr int kDropoutAlong = 16;
/// The offset along of word `word` of counter `counter` among those four.
DSTRAIN_HD constexpr int dropout_along(int counter, int word) {
  return 2 * counter + word % 2 + 8 * (word / 2);
}

/// The words of one counter: 4 · (along / 16) + (along mod 8) / 2. W: std::uint32_t, or a vector of
/// them.
template <typename W>
DSTRAIN_HD void dropout_words(
    const SampleDropout& dropout, std::uint32_t plane, W counter, W across, W (&words)[4]) {
  const auto sample_low = static_cast<std::uint32_t>(dropout.sample);
  const auto sample_high = static_cast<std::uint32_t>(dropout.sample >> 32);
  words[0] = counter;
  words[1] = across;
  words[2] = W{} + sample_low;
  words[3] = W{} + (plane ^ (sample_high << 16));
  philox_rounds(dropout.key, words);
}

/// Noise of a word, uniform within ±magnitude (NEFTune, Jain et al. 2023).
DSTRAIN_HD float noise_of(std::uint32_t word, float magnitude) {
  constexpr float kUnit = 1.0F / 2147483648.0F;  // 2⁻³¹
  return static_cast<float>(static_cast<std::int32_t>(word)) * kUnit * magnitude;
}
/// Whether elements of the batch are drawn at all (sample_dropout).
DSTRAIN_HD bool is_drawn(const std::int32_t* first_sample) {
  return first_sample[1] >= 0;
}

/// One element's factor, 0 or dropout.factor, for references and for code that is not hot.
DSTRAIN_HD float dropout_factor(const SampleDropout& dropout,
                                std::uint32_t plane,
                                std::uint32_t along,
                                std::uint32_t across) {
  std::uint32_t words[4];
  dropout_words(dropout, plane, along / 16 * 4 + along % 8 / 2, across, words);
  return words[along / 8 % 2 * 2 + along % 2] < dropout.threshold ? 0.0F : dropout.factor;
}

}  // namespace dstrain
