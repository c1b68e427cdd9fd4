// What low-rank adapters compute against fp64, on columns of a matrix, with factors both ways.
//
// N tokens, C columns, R ranks
#include <cmath>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Columns [first, first + columns) of rows of `stride`.
struct Case {
  std::int64_t tokens;
  std::int64_t columns;
  std::int64_t ranks;
  std::int64_t first;
  std::int64_t stride;
};
const Case kCases[] = {{1, 64, 8, 0, 64},    {5, 13, 1, 3, 21},       {37, 200, 3, 8, 256},
                       {70, 96, 20, 0, 100}, {300, 130, 16, 64, 200}, {19, 64, 33, 0, 64}};

struct Operands {
  Values h;       ///< [N, R]
  Values wide;    ///< [N, stride]
  Values factor;  ///< T [R, C]
};

Operands operands_of(const Case& c, DType dtype) {
  return {.h = rounded_to(dtype, random_values(c.tokens * c.ranks, 1)),
          .wide = rounded_to(dtype, random_values(c.tokens * c.stride, 2)),
          .factor = rounded_to(dtype, random_values(c.ranks * c.columns, 3))};
}

Values transposed(const Values& matrix, std::int64_t rows, std::int64_t columns) {
  Values turned(matrix.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      turned[static_cast<std::size_t>(c * rows + r)] =
          matrix[static_cast<std::size_t>(r * columns + c)];
    }
  }
  return turned;
}

/// Calls term(n, r, index of h, index of the wide operand, index of T) for all.
template <typename Term>
void for_each_term(const Case& c, Term&& term) {
  for (std::int64_t n = 0; n < c.tokens; ++n) {
    for (std::int64_t r = 0; r < c.ranks; ++r) {
      for (std::int64_t column = 0; column < c.columns; ++column) {
        term(static_cast<std::size_t>(n * c.ranks + r),
             static_cast<std::size_t>(n * c.stride + c.first + column),
             static_cast<std::size_t>(r * c.columns + column));
      }
    }
  }
}

}  // namespace

TEST_CASE("columns are reduced to few ranks, and get what these add", "[ops][low_rank]") {
  constexpr double kScale = 0.5;
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      const Operands in = operands_of(c, dtype);
      Values reduced(in.h.size());
      Values wide = in.wide;
      for_each_term(c, [&](std::size_t h, std::size_t x, std::size_t t) {
        reduced[h] += kScale * in.wide[x] * in.factor[t];
        wide[x] += in.h[h] * in.factor[t];
      });
      for (const bool turns : {false, true}) {
        CAPTURE(name_of(dtype), c.tokens, c.columns, c.ranks, c.first, turns);
        const double absolute =
            2e-6 * std::sqrt(static_cast<double>(c.columns)) + absolute_error_of(dtype);
        conforms({{"reduced", reduced, relative_error_of(dtype), absolute},
                  {"wide", wide, relative_error_of(dtype), absolute}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const Tensor factor =
                       lab.put(turns ? transposed(in.factor, c.ranks, c.columns) : in.factor, dtype,
                               turns ? Shape{c.columns, c.ranks} : Shape{c.ranks, c.columns});
                   const Tensor h = lab.put(in.h, dtype, {c.tokens, c.ranks});
                   const Tensor x = lab.put(in.wide, dtype, {c.tokens, c.stride});
                   const Tensor result = lab.unset(dtype, {c.tokens, c.ranks});
                   lab.ops().reduce_to_rank(ConstColumns(x, c.first, c.columns), factor, turns,
                                            static_cast<float>(kScale), result, lab.stream());
                   lab.ops().add_from_rank(h, factor, turns, Columns(x, c.first, c.columns),
                                           lab.stream());
                   return {lab.get(result), lab.get(x)};
                 });
      }
    }
  }
}

TEST_CASE("factors of low rank have their gradients", "[ops][low_rank]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      const Operands in = operands_of(c, dtype);
      Values gradient(in.factor.size());
      for_each_term(c, [&](std::size_t h, std::size_t x, std::size_t t) {
        gradient[t] += in.h[h] * in.wide[x];
      });
      for (const bool turns : {false, true}) {
        for (const Write write : {Write::kOverwrite, Write::kAdd}) {
          CAPTURE(name_of(dtype), c.tokens, c.columns, c.ranks, c.first, turns);
          Values expected = turns ? transposed(gradient, c.ranks, c.columns) : gradient;
          const Values before = rounded_to(DType::kF32, random_values(std::ssize(expected), 4));
          for (std::size_t i = 0; write == Write::kAdd && i < expected.size(); ++i) {
            expected[i] += before[i];
          }
          const double absolute = 2e-6 * std::sqrt(static_cast<double>(c.tokens));
          conforms({{"gradient", expected, 2e-6, absolute}}, [&](Lab& lab) -> std::vector<Values> {
            const Tensor h = lab.put(in.h, dtype, {c.tokens, c.ranks});
            const Tensor x = lab.put(in.wide, dtype, {c.tokens, c.stride});
            const Shape shape = turns ? Shape{c.columns, c.ranks} : Shape{c.ranks, c.columns};
            const Tensor to = write == Write::kAdd ? lab.put(before, DType::kF32, shape)
                                                   : lab.unset(DType::kF32, shape);
            lab.ops().rank_gradient(h, ConstColumns(x, c.first, c.columns), to, turns, write,
                                    lab.stream());
            return {lab.get(to)};
          });
        }
      }
    }
  }
}

}  // namespace dstrain::test
