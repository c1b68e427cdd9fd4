// Combination: one way of sharing a training step over ranks, and how close to the single-rank run
// of the same global batch it must come. all_combinations() is the parity matrix, which
// parity_matrix prints and combinations_test requires.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/harness/tiny_model.h"

namespace dstrain::test {

enum class Carrier : std::uint8_t { kThreads, kProcesses };

/// The relative difference of losses and norms from the single-rank run's that is allowed in any
/// step.
struct Bound {
  double loss = 0.0;
  double norm = 0.0;
  const char* because = "";
};

struct Combination {
  int data = 1;
  /// How ranks, schedules, stages and formats are chosen. Micro-batch and accumulation are those of
  /// a data-parallel rank.
  TinyOptions options;
  const char* format = "fp32";
  Carrier carrier = Carrier::kThreads;
  Bound bound;
  bool fast = false;  ///< of the subset that is tested with every build: each axis once with each

  [[nodiscard]] int ranks() const;
  [[nodiscard]] std::int64_t global_batch() const;
  /// "llama dp2 tp2+sp pp2 1f1b 3-2 zero3 tied 2x2 bf16": unique, and made of what differs.
  [[nodiscard]] std::string name() const;
  /// The same model, samples and formats on one rank, a step's batch in one piece.
  [[nodiscard]] Combination alone() const;
};

std::vector<Combination> all_combinations();

}  // namespace dstrain::test
