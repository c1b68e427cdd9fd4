#include "tests/ops/lab.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <catch2/catch.hpp>

#include "tests/harness/skip.h"

namespace dstrain::test {

Values random_values(std::int64_t n, std::uint64_t seed, double scale) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(-scale, scale);
  Values values(static_cast<std::size_t>(n));
  for (double& value : values) {
    value = uniform(generator);
  }
  return values;
}

Values rounded_to(DType dtype, Values values) {
  for (double& value : values) {
    const auto single = static_cast<float>(value);
    value = dtype == DType::kBF16  ? to_float(to_bf16(single))
            : dtype == DType::kF16 ? to_float(to_f16(single))
                                   : single;
  }
  return values;
}

Tensor Lab::allocate(DType dtype, Shape shape) {
  memory_.push_back(device().allocate(std::max<std::int64_t>(1, shape.numel() * size_of(dtype)),
                                      "a tensor of a test"));
  return {memory_.back().data(), dtype, shape};
}

Tensor Lab::put(const Values& values, DType dtype, Shape shape) {
  REQUIRE(static_cast<std::int64_t>(values.size()) == shape.numel());
  const Tensor tensor = allocate(dtype, shape);
  const auto upload = [&](const auto& host) {
    device().copy_from_host(host.data(), tensor, stream());
    stream().synchronize();
  };
  if (dtype == DType::kF64) {
    upload(values);
  } else if (dtype == DType::kF32) {
    std::vector<float> host(values.size());
    std::transform(values.begin(), values.end(), host.begin(),
                   [](double value) { return static_cast<float>(value); });
    upload(host);
  } else if (dtype == DType::kBF16) {
    std::vector<BF16> host(values.size());
    std::transform(values.begin(), values.end(), host.begin(),
                   [](double value) { return to_bf16(static_cast<float>(value)); });
    upload(host);
  } else {
    REQUIRE(dtype == DType::kF16);
    std::vector<F16> host(values.size());
    std::transform(values.begin(), values.end(), host.begin(),
                   [](double value) { return to_f16(static_cast<float>(value)); });
    upload(host);
  }
  return tensor;
}

Tensor Lab::unset(DType dtype, Shape shape) {
  if (size_of(dtype) == 1) {
    const std::vector<std::uint8_t> host(static_cast<std::size_t>(shape.numel()), 0x7fU);
    const Tensor tensor = allocate(dtype, shape);
    device().copy_from_host(host.data(), tensor, stream());
    stream().synchronize();
    return tensor;
  }
  return put(Values(static_cast<std::size_t>(shape.numel()), 99.0), dtype, shape);
}

Tensor Lab::put_ids(const std::vector<std::int32_t>& ids) {
  const Tensor tensor = allocate(DType::kI32, {static_cast<std::int64_t>(ids.size())});
  device().copy_from_host(ids.data(), tensor, stream());
  stream().synchronize();
  return tensor;
}

Values Lab::get(ConstTensor tensor) {
  const auto n = static_cast<std::size_t>(tensor.numel());
  Values values(n);
  const auto download = [&](auto host) {
    device().copy_to_host(tensor, host.data(), stream());
    stream().synchronize();
    std::transform(host.begin(), host.end(), values.begin(), [](auto value) -> double {
      if constexpr (std::is_arithmetic_v<decltype(value)>) {
        return static_cast<double>(value);
      } else {
        return to_float(value);
      }
    });
  };
  if (tensor.dtype() == DType::kF64) {
    download(std::vector<double>(n));
  } else if (tensor.dtype() == DType::kF32) {
    download(std::vector<float>(n));
  } else if (tensor.dtype() == DType::kI32) {
    download(std::vector<std::int32_t>(n));
  } else if (tensor.dtype() == DType::kBF16) {
    download(std::vector<BF16>(n));
  } else if (tensor.dtype() == DType::kF8E4M3) {
    download(std::vector<F8E4M3>(n));
  } else if (tensor.dtype() == DType::kF8E5M2) {
    download(std::vector<F8E5M2>(n));
  } else {
    REQUIRE(tensor.dtype() == DType::kF16);
    download(std::vector<F16>(n));
  }
  return values;
}

namespace {

/// Empty if every element is right; otherwise the worst one.
std::string worst_of(const Values& actual, const Expected& expected) {
  if (actual.size() != expected.values.size()) {
    return fmt::format("{} has {} elements, not {}", expected.name, actual.size(),
                       expected.values.size());
  }
  double worst = 1.0;
  std::string text;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double allowed = expected.relative * std::abs(expected.values[i]) + expected.absolute;
    const double excess = std::abs(actual[i] - expected.values[i]) / std::max(allowed, 1e-300);
    if (!(excess <= worst)) {  // also NaN
      worst = std::isnan(excess) ? INFINITY : excess;
      text = fmt::format("{}[{}] is {}, expected {} ± {}", expected.name, i, actual[i],
                         expected.values[i], allowed);
    }
  }
  return text;
}

}  // namespace

std::vector<BackendUnderTest> backends_with_fp8() {
  std::vector<BackendUnderTest> backends = backends_under_test();
  std::erase_if(backends, [](const BackendUnderTest& backend) {
    if (!backend.why_no_fp8.empty()) {
      testing::skip(backend.why_no_fp8);
    }
    return !backend.why_no_fp8.empty();
  });
  return backends;
}

void conforms(const std::vector<Expected>& expected,
              const std::function<std::vector<Values>(Lab&)>& run,
              AcrossThreads across_threads,
              const std::vector<BackendUnderTest>& backends) {
  for (const BackendUnderTest& backend : backends) {
    INFO(backend.name);
    Lab one(backend.make(1));
    Lab two(backend.make(2));
    const std::vector<Values> by_one = run(one);
    const std::vector<Values> by_two = run(two);
    REQUIRE(by_one.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::string worst = worst_of(by_one[i], expected[i]);
      INFO(worst);
      CHECK(worst.empty());
      if (across_threads == AcrossThreads::kSameBits) {
        INFO(expected[i].name << ": one thread and two");
        CHECK((by_one[i] == by_two[i]));
      } else {
        CHECK(worst_of(by_two[i], expected[i]).empty());
      }
    }
  }
}

Values finite_difference(const std::function<double(const Values&)>& f, Values x) {
  constexpr double kStep = 1e-5;
  Values slope(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double centre = x[i];
    x[i] = centre + kStep;
    const double above = f(x);
    x[i] = centre - kStep;
    const double below = f(x);
    x[i] = centre;
    slope[i] = (above - below) / (2.0 * kStep);
  }
  return slope;
}

}  // namespace dstrain::test
