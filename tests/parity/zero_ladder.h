// The number formats, and the comparison, of the tests that hold ZeRO's stages and places to each
// other's bits.
#pragma once

#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/tiny_model.h"

namespace dstrain::test {

inline TinyOptions with_stage(TinyOptions options, int stage) {
  options.zero_stage = stage;
  return options;
}

inline void check_same_bits(const std::vector<TinyRun>& runs,
                            const std::vector<TinyRun>& reference) {
  REQUIRE(runs.size() == reference.size());
  for (const TinyRun& run : runs) {
    CHECK(run.losses == reference[0].losses);
    CHECK(run.parameters == reference[0].parameters);
  }
}

struct Formats {
  const char* name;
  Precision precision;
  FormatConfig formats;
};
inline const Formats kFormats[] = {
    {"fp32", Precision::kF32, {}},
    {"bf16", Precision::kBF16, {}},
    {"bf16, accumulated in bf16", Precision::kBF16, {.grad_accum = DType::kBF16}},
    {"bf16, bf16 on the wire", Precision::kBF16, {.communication = DType::kBF16}},
    {"bf16, bf16 sums on an fp32 wire",
     Precision::kBF16,
     {.grad_accum = DType::kBF16, .communication = DType::kF32}},
};

}  // namespace dstrain::test
