// The tables of rotary positions against those of transformers.
#include "engine/model/rope_tables.h"

#include <cmath>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

constexpr std::int64_t kPairs = 6;

/// A row of both tables.
struct Row {
  std::int64_t position;
  std::vector<float> cosine;
  std::vector<float> sine;
};

void check_rows(const RotarySpec& rotary, std::int64_t text_tokens, const std::vector<Row>& rows) {
  const RopeTables tables = rope_tables(rotary, text_tokens, text_tokens);
  REQUIRE(std::ssize(tables.cosine) == text_tokens * kPairs);
  for (const Row& row : rows) {
    for (std::int64_t pair = 0; pair < kPairs; ++pair) {
      INFO("position " << row.position << ", pair " << pair);
      const auto at = static_cast<std::size_t>(row.position * kPairs + pair);
      const auto expected = static_cast<std::size_t>(pair);
      CHECK(std::abs(tables.cosine[at] - row.cosine[expected]) < 3e-6F);
      CHECK(std::abs(tables.sine[at] - row.sine[expected]) < 3e-6F);
    }
  }
}

}  // namespace

// Phi3RotaryEmbedding of transformers 5.24, for texts of 4096, 4097 and 100001 tokens. Angles there
// are so large that a frequency which is off in its last bit would show.
TEST_CASE("LongRoPE's tables are transformers', to the far end", "[model][rope]") {
  const RotarySpec rotary{
      .dims = 2 * kPairs,
      .theta = 10000.0,
      .scaling = {.kind = RopeScalingKind::kLongRope,
                  .original_max_positions = 4096,
                  .attention_factor = 1.1902380714238083,
                  .short_factors = {1.0, 1.05, 1.1, 1.25, 1.5, 2.0},
                  .long_factors = {1.0700000524520874, 1.25, 2.5, 7.0, 15.5, 60.25}}};
  check_rows(
      rotary, 4096,
      {{1,
        {0.64308846F, 1.16527104F, 1.18917859F, 1.19019997F, 1.19023693F, 1.19023812F},
        {1.00155079F, 0.242508128F, 0.0502086878F, 0.00952180382F, 0.00170952594F,
         0.000276229839F}},
       {4095,
        {-0.0785271451F, -0.173725173F, -1.19021618F, 0.26754576F, 1.09554827F, 0.691987514F},
        {-1.18764484F, -1.17749155F, -0.00723030278F, 1.15977848F, -0.465231746F, 0.968411088F}}});
  const Row thousandth{
      1000,
      {-0.05291095F, -1.08046997F, 1.14282537F, 0.168711334F, 1.17875898F, 1.19020283F},
      {-1.1890614F, 0.499250799F, -0.332591295F, 1.17822039F, 0.164905876F, 0.00916936435F}};
  check_rows(
      rotary, 4097,
      {thousandth,
       {4096,
        {-0.00769004598F, -0.746131778F, 0.947846711F, 1.08101237F, 1.00249493F, 1.18964565F},
        {1.19021332F, 0.92733705F, 0.719898224F, -0.498075426F, 0.641615689F, 0.0375518538F}}});
  check_rows(
      rotary, 100'001,
      {thousandth,
       {100'000,
        {-0.315689415F, 0.910907745F, -1.18898547F, -0.101426199F, 0.280136526F, 0.854162812F},
        {1.14760923F, 0.766103089F, 0.0545916967F, -1.18590868F, 1.15680182F, 0.82889843F}}});
}

}  // namespace dstrain
