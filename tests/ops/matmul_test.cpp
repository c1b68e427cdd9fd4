// The products of linear layers against loops in f64, at sizes that fit no vector and no tile.
//
// N tokens, I inputs, O outputs
#include "kernels/cpu/matmul.h"

#include <array>
#include <cmath>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul_packed.h"
#include "kernels/math/philox.h"

namespace dstrain {
namespace {

VectorLoops fastest_loops() {
  return loops_for(supported_isas().back());
}

enum class Product : std::uint8_t { kForward, kForwardBias, kInput, kWeight, kWeightAdd };

constexpr Product kProducts[] = {Product::kForward, Product::kForwardBias, Product::kInput,
                                 Product::kWeight, Product::kWeightAdd};

struct Case {
  Product product;
  std::int64_t n, i, o;
  DType in;
  DType out;
};

/// A matrix in f32, bf16 or f16 that starts `offset` elements after an aligned address, with guards
/// around it; `exact` has what was stored.
class GuardedMatrix {
 public:
  GuardedMatrix(std::int64_t size, DType dtype, std::uint32_t stream, std::int64_t offset = 1)
      : dtype_(dtype), size_(size), offset_(offset) {
    storage_.assign(static_cast<std::size_t>((size + offset + kGuard) * size_of(dtype)),
                    std::byte{0xAB});
    exact_.resize(static_cast<std::size_t>(size));
    for (std::int64_t k = 0; k < size; ++k) {
      const auto bits = philox(17, stream, static_cast<std::uint64_t>(k))[0];
      const float value = static_cast<float>(bits) * 0x1p-31F - 1.0F;
      set(k, value);
      exact_[static_cast<std::size_t>(k)] = at(k);
    }
  }
  [[nodiscard]] Tensor tensor(Shape shape) {
    return {storage_.data() + offset_ * size_of(dtype_), dtype_, shape};
  }
  [[nodiscard]] double at(std::int64_t k) const {
    const std::byte* const from = storage_.data() + (offset_ + k) * size_of(dtype_);
    if (dtype_ == DType::kF32) {
      float value = 0.0F;
      std::memcpy(&value, from, sizeof(value));
      return static_cast<double>(value);
    }
    std::uint16_t half = 0;
    std::memcpy(&half, from, sizeof(half));
    return static_cast<double>(dtype_ == DType::kBF16 ? to_float(BF16{half}) : to_float(F16{half}));
  }
  [[nodiscard]] const std::vector<double>& exact() const { return exact_; }
  [[nodiscard]] bool guards_intact() const {
    for (std::int64_t k = 0; k < offset_ * size_of(dtype_); ++k) {
      if (storage_[static_cast<std::size_t>(k)] != std::byte{0xAB}) return false;
    }
    for (auto k = (offset_ + size_) * size_of(dtype_); k < std::ssize(storage_); ++k) {
      if (storage_[static_cast<std::size_t>(k)] != std::byte{0xAB}) return false;
    }
    return true;
  }

 private:
  static constexpr std::int64_t kGuard = 64;
  void set(std::int64_t k, float value) {
    std::byte* const to = storage_.data() + (offset_ + k) * size_of(dtype_);
    const std::uint16_t half = dtype_ == DType::kBF16 ? to_bf16(value).bits : to_f16(value).bits;
    std::memcpy(to, dtype_ == DType::kF32 ? static_cast<const void*>(&value) : &half,
                static_cast<std::size_t>(size_of(dtype_)));
  }

  DType dtype_;
  std::int64_t size_;
  std::int64_t offset_;
  std::vector<std::byte> storage_;
  std::vector<double> exact_;
};

struct Result {
  std::vector<double> values;
  std::vector<double> reference;
  std::vector<double> magnitude;  ///< sum of |terms|: what rounding errors are relative to
  bool guards_intact = false;
};

/// c[r, s] = start + sum over t of left(r, t) · right(t, s).
template <typename Start, typename Left, typename Right>
void reference_product(std::int64_t rows,
                       std::int64_t columns,
                       std::int64_t terms,
                       const Start& start,
                       const Left& left,
                       const Right& right,
                       Result& result) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < columns; ++s) {
      double sum = start(r, s);
      double magnitude = std::abs(sum);
      for (std::int64_t t = 0; t < terms; ++t) {
        const double term = left(r, t) * right(t, s);
        sum += term;
        magnitude += std::abs(term);
      }
      result.reference.push_back(sum);
      result.magnitude.push_back(magnitude);
    }
  }
}

Result compute(CpuMatmul& matmul, const Case& c, std::int64_t offset = 1) {
  GuardedMatrix x(c.n * c.i, c.in, 1, offset);
  GuardedMatrix w(c.o * c.i, c.in, 2, offset);
  GuardedMatrix dy(c.n * c.o, c.in, 3, offset);
  GuardedMatrix bias(c.o, c.in, 4, offset);
  const auto at = [](const GuardedMatrix& matrix, std::int64_t index) {
    return matrix.exact()[static_cast<std::size_t>(index)];
  };
  const auto nothing = [](std::int64_t, std::int64_t) { return 0.0; };
  Result result;
  const auto finish = [&](GuardedMatrix& out) {
    for (std::int64_t k = 0; k < std::ssize(out.exact()); ++k) {
      result.values.push_back(out.at(k));
    }
    result.guards_intact = out.guards_intact();
  };
  switch (c.product) {
    case Product::kForward:
    case Product::kForwardBias: {
      const bool with_bias = c.product == Product::kForwardBias;
      GuardedMatrix y(c.n * c.o, c.out, 5, offset);
      matmul.run(forward_product(x.tensor({c.n, c.i}), w.tensor({c.o, c.i}),
                                 with_bias ? bias.tensor({c.o}) : Tensor(), y.tensor({c.n, c.o})));
      reference_product(
          c.n, c.o, c.i,
          [&](std::int64_t, std::int64_t o) { return with_bias ? at(bias, o) : 0.0; },
          [&](std::int64_t n, std::int64_t i) { return at(x, n * c.i + i); },
          [&](std::int64_t i, std::int64_t o) { return at(w, o * c.i + i); }, result);
      finish(y);
      break;
    }
    case Product::kInput: {
      GuardedMatrix dx(c.n * c.i, c.out, 6, offset);
      matmul.run(backward_input_product(dy.tensor({c.n, c.o}), w.tensor({c.o, c.i}),
                                        dx.tensor({c.n, c.i})));
      reference_product(
          c.n, c.i, c.o, nothing,
          [&](std::int64_t n, std::int64_t o) { return at(dy, n * c.o + o); },
          [&](std::int64_t o, std::int64_t i) { return at(w, o * c.i + i); }, result);
      finish(dx);
      break;
    }
    case Product::kWeight:
    case Product::kWeightAdd: {
      const bool add = c.product == Product::kWeightAdd;
      GuardedMatrix dw(c.o * c.i, DType::kF32, 7, offset);
      matmul.run(backward_weight_product(dy.tensor({c.n, c.o}), x.tensor({c.n, c.i}),
                                         dw.tensor({c.o, c.i}),
                                         add ? Write::kAdd : Write::kOverwrite));
      reference_product(
          c.o, c.i, c.n,
          [&](std::int64_t o, std::int64_t i) { return add ? at(dw, o * c.i + i) : 0.0; },
          [&](std::int64_t o, std::int64_t n) { return at(dy, n * c.o + o); },
          [&](std::int64_t n, std::int64_t i) { return at(x, n * c.i + i); }, result);
      finish(dw);
      break;
    }
  }
  return result;
}

/// The largest error, as a share of what is allowed: f32 sums lose a few units in the last place
/// of the terms' magnitude, a bf16 or f16 result half a unit of its own (among f16's subnormals
/// that is 2⁻²⁵).
double worst_share(const Result& result, DType out) {
  double worst = 0.0;
  for (std::size_t k = 0; k < result.values.size(); ++k) {
    const double half_unit = out == DType::kBF16 ? 0x1.01p-8 * std::abs(result.reference[k])
                             : out == DType::kF16
                                 ? 0x1.01p-11 * std::abs(result.reference[k]) + 0x1p-25
                                 : 0.0;
    const double allowed = 2e-6 * result.magnitude[k] + 1e-30 + half_unit;
    const double error = std::abs(result.values[k] - result.reference[k]);
    worst = std::max(worst, std::isfinite(error) ? error / allowed : 1e30);
  }
  return worst;
}

void check_products(CpuMatmul& matmul, const Case& sizes, std::int64_t offset) {
  for (const Product product : kProducts) {
    const bool weight = product == Product::kWeight || product == Product::kWeightAdd;
    Case c = sizes;
    c.product = product;
    const Result result = compute(matmul, c, offset);
    INFO("product " << static_cast<int>(product) << " n=" << c.n << " i=" << c.i << " o=" << c.o
                    << " in=" << name_of(c.in) << " out=" << name_of(c.out));
    CHECK(worst_share(result, weight ? DType::kF32 : c.out) <= 1.0);
    CHECK(result.guards_intact);
  }
}

void check_all(
    CpuMatmul& matmul, std::int64_t n, std::int64_t i, std::int64_t o, std::int64_t offset = 1) {
  for (const auto& [in, out] :
       {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBF16, DType::kBF16},
        std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF16, DType::kF16},
        std::pair{DType::kF16, DType::kF32}}) {
    check_products(matmul, {{}, n, i, o, in, out}, offset);
  }
}

}  // namespace

TEST_CASE("the three products equal f64 loops at awkward sizes", "[ops][matmul]") {
  CpuMatmul matmul(2, fastest_loops());
  const std::int64_t sizes[][3] = {{1, 1, 1},     {1, 7, 3},     {3, 1, 7},    {7, 3, 1},
                                   {33, 7, 65},   {1, 33, 129},  {129, 33, 1}, {31, 64, 33},
                                   {64, 96, 160}, {65, 130, 67}, {17, 257, 5}, {5, 300, 1031}};
  for (const auto& [n, i, o] : sizes) {
    check_all(matmul, n, i, o);
  }
}

TEST_CASE("the three products equal f64 loops across block edges", "[ops][matmul]") {
  CpuMatmul matmul(2, fastest_loops());
  check_all(matmul, 300, 130, 200, 0);
  check_all(matmul, 70, 1100, 90, 0);
  check_all(matmul, 40, 70, 1600);
}

// f16 has no library's kernels anywhere: these are our own, of every instruction set.
TEST_CASE("f16 products equal f64 loops on every instruction set, in several blocks",
          "[ops][matmul]") {
  const std::int64_t sizes[][3] = {{1030, 3, 1100}, {1100, 1030, 3}, {3, 1100, 2050},
                                   {5, 1024, 1025}, {1030, 5, 2600}, {1000, 5, 2600}};
  for (const CpuIsa isa : supported_isas()) {
    INFO(name_of(isa));
    CpuMatmul matmul(2, loops_for(isa));
    for (const auto& [n, i, o] : sizes) {
      check_products(matmul, {{}, n, i, o, DType::kF16, DType::kF16}, 1);
    }
  }
}

TEST_CASE("an f16 product has the same bits whatever is computed beside it", "[ops][matmul]") {
  constexpr std::int64_t kTokens = 1000;  // a block, of two slabs of inputs
  constexpr std::int64_t kInputs = 2300;
  constexpr std::int64_t kOutputs = 4200;  // more columns than sums are kept for at once
  const auto values = [](std::int64_t size, std::uint32_t stream) {
    std::vector<F16> made;
    for (std::int64_t k = 0; k < size; ++k) {
      const auto bits = philox(17, stream, static_cast<std::uint64_t>(k))[0];
      made.push_back(to_f16(static_cast<float>(bits) * 0x1p-31F - 1.0F));
    }
    return made;
  };
  std::vector<F16> x = values(kTokens * kInputs, 1);
  std::vector<F16> w = values(kOutputs * kInputs, 2);
  std::vector<F16> bias = values(kOutputs, 3);
  CpuMatmul matmul(2, fastest_loops());
  const auto product = [&](std::int64_t token, std::int64_t n, std::int64_t output,
                           std::int64_t o) {
    std::vector<F16> y(static_cast<std::size_t>(n * o));
    matmul.run(forward_product(Tensor(x.data() + token * kInputs, DType::kF16, {n, kInputs}),
                               Tensor(w.data() + output * kInputs, DType::kF16, {o, kInputs}),
                               Tensor(bias.data() + output, DType::kF16, {o}),
                               Tensor(y.data(), DType::kF16, {n, o})));
    return y;
  };
  const std::vector<F16> whole = product(0, kTokens, 0, kOutputs);
  for (const auto& [token, n, output, o] : {std::array<std::int64_t, 4>{0, 1, 0, 9},
                                            {7, 3, 4000, 200},
                                            {900, 100, 4059, 20},
                                            {0, kTokens, 4060, 10},
                                            {513, 30, 0, kOutputs}}) {
    const std::vector<F16> part = product(token, n, output, o);
    std::int64_t other = 0;
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t c = 0; c < o; ++c) {
        other += part[static_cast<std::size_t>(r * o + c)].bits !=
                 whole[static_cast<std::size_t>((token + r) * kOutputs + output + c)].bits;
      }
    }
    CAPTURE(token, n, output, o);
    CHECK(other == 0);
  }
}

TEST_CASE("rows of an f32 product have the same bits beside whatever other rows", "[ops][matmul]") {
  constexpr std::int64_t kTokens = 300;
  constexpr std::int64_t kInputs = 2051;
  constexpr std::int64_t kOutputs = 1201;  // what is transposed at once ends within them
  std::vector<float> x(kTokens * kInputs);
  std::vector<float> w(kOutputs * kInputs);
  std::vector<float> bias(kOutputs);
  std::uint32_t stream = 0;
  for (std::vector<float>* const of : {&x, &w, &bias}) {
    ++stream;
    for (std::size_t k = 0; k < of->size(); ++k) {
      (*of)[k] = static_cast<float>(philox(29, stream, k)[0]) * 0x1p-31F - 1.0F;
    }
  }
  const auto product = [&](int threads, std::int64_t first, std::int64_t n, bool biased) {
    CpuMatmul matmul(threads, fastest_loops());
    std::vector<float> y(static_cast<std::size_t>(n * kOutputs));
    matmul.run(forward_product(Tensor(x.data() + first * kInputs, DType::kF32, {n, kInputs}),
                               Tensor(w.data(), DType::kF32, {kOutputs, kInputs}),
                               biased ? Tensor(bias.data(), DType::kF32, {kOutputs}) : Tensor{},
                               Tensor(y.data(), DType::kF32, {n, kOutputs})));
    return y;
  };
  for (const bool biased : {false, true}) {
    const std::vector<float> whole = product(2, 0, kTokens, biased);
    for (const auto& [threads, first, n] : {std::array<std::int64_t, 3>{2, 0, 33},
                                            {1, 7, 64},
                                            {3, 100, 47},
                                            {2, 41, 200},
                                            {3, 0, kTokens}}) {
      INFO(n << " rows from " << first << " on, " << threads << " threads, bias " << biased);
      const std::vector<float> part = product(static_cast<int>(threads), first, n, biased);
      CHECK(std::memcmp(part.data(), whole.data() + first * kOutputs,
                        part.size() * sizeof(float)) == 0);
    }
  }
}

TEMPLATE_TEST_CASE(
    "few rows have the bits that they have among many", "[ops][matmul]", float, BF16, F16) {
  constexpr std::int64_t kTokens = 70;
  constexpr std::int64_t kInputs = 701;  // three chunks of terms
  constexpr std::int64_t kOutputs = 151;
  const auto values = [](std::int64_t size, std::uint32_t stream) {
    std::vector<TestType> made(static_cast<std::size_t>(size));
    for (std::int64_t k = 0; k < size; ++k) {
      const auto bits = philox(23, stream, static_cast<std::uint64_t>(k))[0];
      const float value = static_cast<float>(bits) * 0x1p-31F - 1.0F;
      if constexpr (std::is_same_v<TestType, float>) made[static_cast<std::size_t>(k)] = value;
      if constexpr (std::is_same_v<TestType, BF16>)
        made[static_cast<std::size_t>(k)] = to_bf16(value);
      if constexpr (std::is_same_v<TestType, F16>)
        made[static_cast<std::size_t>(k)] = to_f16(value);
    }
    return made;
  };
  const std::vector<TestType> x = values(kTokens * kInputs, 1);
  const std::vector<TestType> w = values(kOutputs * kInputs, 2);
  const std::vector<TestType> bias = values(kOutputs, 3);
  for (const CpuIsa isa : supported_isas()) {
    PackedMatmul matmul(2, loops_for(isa));
    const auto product = [&]<typename C>(std::int64_t first, std::int64_t n, bool biased,
                                         C /*to*/) {
      std::vector<C> y(static_cast<std::size_t>(n * kOutputs));
      matmul.run(DenseProduct<TestType>{
          .form = {.m = n, .n = kOutputs, .k = kInputs, .b_transposed = true},
          .a = x.data() + first * kInputs,
          .b = w.data(),
          .bias = biased ? bias.data() : nullptr,
          .c = y.data(),
          .c_dtype = DTypeOf<C>::value});
      return y;
    };
    const auto compare = [&]<typename C>(C to) {
      for (const bool biased : {false, true}) {
        const std::vector<C> whole = product(0, kTokens, biased, to);
        for (const std::int64_t n : {1, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33}) {
          INFO(name_of(isa) << ", " << n << " rows");
          const std::int64_t first = n % 7;
          CHECK(std::memcmp(product(first, n, biased, to).data(), whole.data() + first * kOutputs,
                            static_cast<std::size_t>(n * kOutputs) * sizeof(C)) == 0);
        }
      }
    };
    compare(TestType{});
    compare(float{});
  }
}

TEST_CASE("f16 sums leave f16's range on the way and come back", "[ops][matmul]") {
  // 60000 + 60000 - 60000 needs f32 sums; 60000 + 60000 is beyond f16, and its infinity must not
  // be hidden: a loss scaler looks for it.
  CpuMatmul matmul(2, fastest_loops());
  const auto halves = [](std::initializer_list<float> values) {
    std::vector<F16> result;
    for (const float value : values) {
      result.push_back(to_f16(value));
    }
    return result;
  };
  std::vector<F16> x = halves({250.0F, 250.0F, 250.0F});
  std::vector<F16> w = halves({240.0F, 240.0F, -240.0F,  //
                               240.0F, 240.0F, 0.0F,     //
                               -240.0F, 0.0F, -240.0F});
  std::vector<F16> y(3);
  std::vector<float> wide(3);
  const auto tensor = [](auto& values, Shape shape) {
    using T = typename std::remove_reference_t<decltype(values)>::value_type;
    return Tensor(values.data(), DTypeOf<T>::value, shape);
  };
  matmul.run(forward_product(tensor(x, {1, 3}), tensor(w, {3, 3}), {}, tensor(y, {1, 3})));
  CHECK(to_float(y[0]) == 60000.0F);
  CHECK(to_float(y[1]) == INFINITY);
  CHECK(to_float(y[2]) == -INFINITY);
  matmul.run(forward_product(tensor(x, {1, 3}), tensor(w, {3, 3}), {}, tensor(wide, {1, 3})));
  CHECK(wide == std::vector<float>{60000.0F, 120000.0F, -120000.0F});
}

TEST_CASE("the three products equal f64 loops on a model's shapes", "[ops][matmul][slow]") {
  for (const int threads : {1, 3}) {
    CpuMatmul matmul(threads, fastest_loops());
    check_all(matmul, 256, 384, 320, 0);    // blocks everywhere
    check_all(matmul, 160, 1088, 128, 32);  // more than one chunk of terms
    check_all(matmul, 96, 64, 2048);        // rows of C whole pages apart
    check_all(matmul, 1056, 64, 96);        // many tokens: chunks of the weight's gradient
    check_all(matmul, 66, 64, 5003);        // a vocabulary
  }
}

TEST_CASE("products with a vocabulary that no cache holds equal f64 loops", "[ops][matmul][slow]") {
  CpuMatmul matmul(2, fastest_loops());
  for (const Product product : {Product::kForwardBias, Product::kInput}) {
    const Case c{product, 16, 64, 131101, DType::kBF16, DType::kBF16};
    const Result result = compute(matmul, c);
    CHECK(worst_share(result, c.out) <= 1.0);
    CHECK(result.guards_intact);
  }
}

TEST_CASE("a product without terms writes zeros or the bias", "[ops][matmul]") {
  CpuMatmul matmul(2, fastest_loops());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    GuardedMatrix x(0, dtype, 1);
    GuardedMatrix dy(0, dtype, 2);
    GuardedMatrix bias(5, dtype, 3);
    GuardedMatrix dw(15, DType::kF32, 4);
    matmul.run(backward_weight_product(dy.tensor({0, 5}), x.tensor({0, 3}), dw.tensor({5, 3}),
                                       Write::kAdd));
    for (std::int64_t k = 0; k < 15; ++k) {
      CHECK(dw.at(k) == dw.exact()[static_cast<std::size_t>(k)]);
    }
    matmul.run(backward_weight_product(dy.tensor({0, 5}), x.tensor({0, 3}), dw.tensor({5, 3}),
                                       Write::kOverwrite));
    for (std::int64_t k = 0; k < 15; ++k) {
      CHECK(dw.at(k) == 0.0);
    }
    GuardedMatrix y(10, dtype, 5);
    matmul.run(
        forward_product(x.tensor({2, 0}), x.tensor({5, 0}), bias.tensor({5}), y.tensor({2, 5})));
    for (std::int64_t k = 0; k < 10; ++k) {
      CHECK(y.at(k) == bias.at(k % 5));
    }
    matmul.run(forward_product(
        x.tensor({0, 3}),
        dw.tensor({5, 3}).dtype() == dtype ? dw.tensor({5, 3})
                                           : Tensor(y.tensor({10}).data(), dtype, {3, 3}),
        {}, Tensor(nullptr, dtype, dtype == DType::kF32 ? Shape{0, 5} : Shape{0, 3})));
  }
}

TEST_CASE("four threads with a CpuMatmul each compute what one computes", "[ops][matmul]") {
  std::vector<Case> cases;
  for (const Product product : kProducts) {
    for (const DType in : {DType::kF32, DType::kBF16, DType::kF16}) {
      cases.push_back({product, 130, 260, 70, in, DType::kF32});
      cases.push_back({product, 64, 64, 200, in, in});
    }
  }
  const auto run_all = [&](int threads) {
    CpuMatmul matmul(threads, fastest_loops());
    std::vector<std::vector<double>> results;
    for (const Case& c : cases) {
      results.push_back(compute(matmul, c).values);
    }
    return results;
  };
  const auto alone = run_all(1);
  std::vector<std::vector<std::vector<double>>> together(4);
  {
    std::vector<std::jthread> threads;
    for (auto& results : together) {
      threads.emplace_back([&] { results = run_all(1); });
    }
  }
  for (const auto& results : together) {
    CHECK((results == alone));
  }
}

TEST_CASE("a product is the same bit for bit every time", "[ops][matmul]") {
  for (const DType in : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Product product : kProducts) {
      const Case c{product, 200, 300, 130, in, DType::kF32};
      CpuMatmul first(2, fastest_loops());
      const std::vector<double> values = compute(first, c).values;
      for (int repetition = 0; repetition < 3; ++repetition) {
        CHECK((compute(first, c).values == values));
      }
      CpuMatmul second(2, fastest_loops());
      CHECK((compute(second, c).values == values));
    }
  }
}

// Those that a library computes may depend on how it cuts C over threads.
TEST_CASE("our own products are the same bit for bit with any number of threads", "[ops][matmul]") {
  const std::int64_t sizes[][3] = {{25, 158, 50},  {16, 262, 50},  {172, 113, 57}, {182, 72, 16},
                                   {43, 1179, 28}, {198, 216, 9},  {18, 774, 22},  {185, 1023, 63},
                                   {110, 213, 9},  {300, 40, 290}, {600, 20, 530}};
  std::vector<DType> dtypes{DType::kF16};
  if (supported_isas().back() < CpuIsa::kAvx512) {
    dtypes.insert(dtypes.end(), {DType::kF32, DType::kBF16});
  }
  for (const DType dtype : dtypes) {
    for (const auto& [n, i, o] : sizes) {
      for (const Product product : kProducts) {
        const Case c{product, n, i, o, dtype, DType::kF32};
        CpuMatmul alone(1, fastest_loops());
        const Result expected = compute(alone, c);
        for (const int threads : {2, 3}) {
          CAPTURE(n, i, o, static_cast<int>(product), threads);
          CpuMatmul matmul(threads, fastest_loops());
          CHECK(compute(matmul, c).values == expected.values);
        }
      }
    }
  }
}

TEST_CASE("matrices that do not fit are refused", "[ops][matmul]") {
  CpuMatmul matmul(1, fastest_loops());
  GuardedMatrix x(12, DType::kF32, 1);
  GuardedMatrix w(20, DType::kF32, 2);
  GuardedMatrix y(15, DType::kF32, 3);
  GuardedMatrix narrow(20, DType::kBF16, 4);
  CHECK_THROWS_AS(
      matmul.run(forward_product(x.tensor({3, 4}), w.tensor({4, 5}), {}, y.tensor({3, 5}))),
      InternalError);
  CHECK_THROWS_AS(
      matmul.run(forward_product(x.tensor({3, 4}), narrow.tensor({5, 4}), {}, y.tensor({3, 5}))),
      InternalError);
  GuardedMatrix f16(20, DType::kF16, 5);
  CHECK_THROWS_AS(
      matmul.run(forward_product(narrow.tensor({3, 4}), f16.tensor({5, 4}), {}, y.tensor({3, 5}))),
      InternalError);
  CHECK_THROWS_AS(matmul.run(forward_product(f16.tensor({2, 4}), f16.tensor({5, 4}), {},
                                             narrow.tensor({2, 5}))),
                  InternalError);
  CHECK_THROWS_AS(matmul.run(backward_weight_product(narrow.tensor({3, 5}), narrow.tensor({3, 4}),
                                                     narrow.tensor({5, 4}), Write::kOverwrite)),
                  InternalError);
}

}  // namespace dstrain
