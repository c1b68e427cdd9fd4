// Blocks of elements copied and added: against loops over each element's place, as heads packed for
// an exchange and unpacked again, and what is refused.
//
// P parts, N rows, H heads of D numbers
#include <catch2/catch.hpp>

#include "kernels/block_copy_operands.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

struct Case {
  BlockCopy copy;
  std::int64_t from;  ///< elements of the tensor
  std::int64_t to;
};

// Packs of eight that fit, and those that do not; runs that become longer ones; strides in another
// order than the counts; a run longer than a task's piece.
const Case kCases[] = {
    {{{2, 5, 3}, 16, {8, {240, 48, 16}}, {0, {240, 16, 80}}}, 488, 480},
    {{{2, 5, 3}, 7, {3, {105, 21, 7}}, {1, {120, 22, 7}}}, 213, 240},
    {{{3, 1, 4}, 24, {0, {96, 0, 24}}, {16, {96, 0, 24}}}, 288, 304},
    {{{1, 2, 2}, 1, {0, {0, 1, 2}}, {0, {0, 2, 1}}}, 4, 4},
    {{{4, 1, 1}, 8, {0, {0, 0, 0}}, {0, {8, 0, 0}}}, 8, 32},
    {{{1, 1, 2}, 70000, {0, {0, 0, 70001}}, {5, {0, 0, 70000}}}, 140001, 140005},
};

Values copied(const Case& c, const Values& from, Values to, bool adds) {
  for (std::int64_t i = 0; i < c.copy.counts[0]; ++i) {
    for (std::int64_t j = 0; j < c.copy.counts[1]; ++j) {
      for (std::int64_t k = 0; k < c.copy.counts[2]; ++k) {
        for (std::int64_t e = 0; e < c.copy.run; ++e) {
          const auto place = [&](const BlockPlaces& places) {
            return static_cast<std::size_t>(places.first + i * places.strides[0] +
                                            j * places.strides[1] + k * places.strides[2] + e);
          };
          double& written = to[place(c.copy.to)];
          written = from[place(c.copy.from)] + (adds ? written : 0.0);
        }
      }
    }
  }
  return to;
}

}  // namespace

TEST_CASE("blocks are copied and added where their places say, and nothing else changes",
          "[ops][blocks]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      CAPTURE(name_of(dtype), c.copy.runs(), c.copy.run);
      const Values from = rounded_to(dtype, random_values(c.from, 1));
      const Values before = rounded_to(dtype, random_values(c.to, 2));
      conforms({{"copied", copied(c, from, before, false), 0.0, 0.0},
                {"added", rounded_to(dtype, copied(c, from, before, true)), 0.0, 0.0}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor in = lab.put(from, dtype, {c.from});
                 const Tensor written = lab.put(before, dtype, {c.to});
                 const Tensor sums = lab.put(before, dtype, {c.to});
                 lab.ops().copy_blocks(c.copy, in, written, Write::kOverwrite, lab.stream());
                 lab.ops().copy_blocks(c.copy, in, sums, Write::kAdd, lab.stream());
                 return {lab.get(written), lab.get(sums)};
               });
    }
  }
}

TEST_CASE("blocks of 4-byte integers are copied bit for bit", "[ops][blocks]") {
  const std::vector<std::int32_t> ids{-1, 0x7fffffff, 0x7f800001, 3, 4, 5};
  conforms({{"ids", {3.0, 4.0, 5.0, -1.0, 0x7fffffff, 0x7f800001}, 0.0, 0.0}},
           [&](Lab& lab) -> std::vector<Values> {
             const Tensor in = lab.put_ids(ids);
             const Tensor out = lab.put_ids({0, 0, 0, 0, 0, 0});
             lab.ops().copy_blocks({{1, 1, 1}, 3, {3, {}}, {0, {}}}, in, out, Write::kOverwrite,
                                   lab.stream());
             lab.ops().copy_blocks({{1, 1, 1}, 3, {0, {}}, {3, {}}}, in, out, Write::kOverwrite,
                                   lab.stream());
             return {lab.get(out)};
           });
}

TEST_CASE("heads packed by parts and unpacked again are what they were", "[ops][blocks]") {
  constexpr std::int64_t kParts = 3;
  constexpr std::int64_t kRows = 10;
  constexpr std::int64_t kHeads = 2;  // of a part
  constexpr std::int64_t kDepth = 16;
  constexpr std::int64_t kWidth = kParts * kHeads * kDepth;
  const BlockPlaces rows{.first = 0, .strides = {kHeads * kDepth, kWidth, kDepth}};
  const BlockPlaces parts{.first = 0,
                          .strides = {kRows * kHeads * kDepth, kHeads * kDepth, kDepth}};
  const Values x = rounded_to(DType::kBF16, random_values(kRows * kWidth, 3));
  conforms({{"heads", x, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
    const Tensor in = lab.put(x, DType::kBF16, {kRows, kWidth});
    const Tensor packed = lab.unset(DType::kBF16, {kParts, kRows * kHeads * kDepth});
    const Tensor out = lab.unset(DType::kBF16, {kRows, kWidth});
    BlockCopy copy{.counts = {kParts, kRows, kHeads}, .run = kDepth, .from = rows, .to = parts};
    lab.ops().copy_blocks(copy, in, packed, Write::kOverwrite, lab.stream());
    std::swap(copy.from, copy.to);
    lab.ops().copy_blocks(copy, packed, out, Write::kOverwrite, lab.stream());
    return {lab.get(out)};
  });
}

TEST_CASE("copies that leave their tensors or meet themselves are refused", "[ops][blocks]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    CAPTURE(backend.name);
    Lab lab(backend.make(1));
    const Tensor x = lab.unset(DType::kF32, {24});
    const Tensor y = lab.unset(DType::kF32, {24});
    const Tensor half = lab.unset(DType::kBF16, {24});
    const Tensor ids = lab.put_ids({0, 0});
    const auto refuses = [&](const BlockCopy& copy, const Tensor& from, const Tensor& to,
                             Write write, const std::string& why) {
      CHECK_THROWS_WITH(lab.ops().copy_blocks(copy, from, to, write, lab.stream()),
                        Catch::Contains(why));
    };
    const BlockCopy fits{{1, 3, 2}, 4, {0, {0, 8, 4}}, {0, {0, 4, 12}}};
    lab.ops().copy_blocks(fits, x, y, Write::kOverwrite, lab.stream());
    BlockCopy wrong = fits;
    wrong.from.first = 1;
    refuses(wrong, x, y, Write::kOverwrite, "elements [1, 25) of what is read, which has 24");
    wrong = fits;
    wrong.to.strides[1] = 5;
    refuses(wrong, x, y, Write::kOverwrite, "elements [0, 26) of what is written");
    wrong = fits;
    wrong.to.strides[2] = 8;
    refuses(wrong, x, y, Write::kOverwrite, "a stride of 8 between runs that take 12");
    wrong = fits;
    wrong.to.strides[1] = 0;
    refuses(wrong, x, y, Write::kOverwrite, "a stride of 0 between runs that take 4");
    wrong = fits;
    wrong.from.strides[2] = -4;
    refuses(wrong, x, y, Write::kOverwrite, "a stride of -4");
    refuses(fits, x, half, Write::kOverwrite, "f32 to bf16");
    refuses({{1, 1, 1}, 2, {}, {}}, ids, ids, Write::kAdd, "expected f32, bf16 or f16");
  }
}

}  // namespace dstrain::test
