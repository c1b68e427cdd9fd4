// Adapters beside weights in 4 bits (QLoRA): the code is bitsandbytes', ranks that have parts of a
// matrix have the numbers of the whole one, every layout follows one rank, and runs go on as if
// they had not stopped. What runs equal from outside: scripts/check_adapters.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/conversion.h"
#include "engine/checkpoint/placed_tensor.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/config_error.h"
#include "engine/model/code_weights.h"
#include "kernels/backend.h"
#include "tests/parity/adapted_runs.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

std::vector<float> floats_of(const SafetensorsFile& file, const std::string& name, DType dtype) {
  const SafetensorsEntry& entry = file.tensors().at(name);
  const std::span<const std::byte> bytes = file.data(entry);
  std::vector<float> values(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  convert_elements(bytes.data(), dtype, reinterpret_cast<std::byte*>(values.data()), DType::kF32,
                   std::ssize(values));
  return values;
}

std::vector<float> decoded(const Nf4Code& code, std::vector<std::byte> coded) {
  Backend backend = make_cpu_backend(1);
  std::vector<float> values(static_cast<std::size_t>(code.numel()));
  backend.ops->decode_nf4(code, {coded.data(), DType::kU8, Shape{std::ssize(coded)}},
                          {values.data(), DType::kF32, Shape{code.numel()}},
                          backend.device->compute_stream());
  backend.device->compute_stream().synchronize();
  return values;
}

std::vector<std::byte> encoded(const Nf4Code& code, const std::vector<float>& whole) {
  std::vector<std::byte> coded(static_cast<std::size_t>(code.bytes()));
  code_weights(code, whole, coded, 1);
  return coded;
}

TEST_CASE("a matrix has the code that bitsandbytes gives it", "[parity][quantization]") {
  const SafetensorsFile golden("tests/golden/nf4.safetensors");
  const auto bytes_of = [&](const char* name) { return golden.data(golden.tensors().at(name)); };
  const Levels<256> dynamic = dynamic_levels();
  CHECK(std::memcmp(bytes_of("dynamic_levels").data(), dynamic.of, sizeof(dynamic.of)) == 0);
  CHECK(std::memcmp(bytes_of("levels").data(), kNf4Levels.of, sizeof(kNf4Levels.of)) == 0);
  const std::vector<float> weight = floats_of(golden, "weight", DType::kBF16);
  const Nf4Code code{.rows = 70, .columns = 256, .all_rows = 70, .all_columns = 256};
  const std::vector<std::byte> coded = encoded(code, weight);
  const auto is_at = [&](const char* name, std::int64_t at) {
    const std::span<const std::byte> expected = bytes_of(name);
    return std::memcmp(coded.data() + at, expected.data(), expected.size()) == 0;
  };
  CHECK(is_at("codes", 0));
  CHECK(is_at("magnitudes", code.magnitudes_at()));
  // The mean is summed in another order.
  const auto near = [&](const char* name, std::int64_t at) {
    const std::vector<float> expected = floats_of(golden, name, DType::kF32);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      float found = 0.0F;
      std::memcpy(&found, coded.data() + at + 4 * static_cast<std::int64_t>(i), sizeof(found));
      CHECK(found == Approx(expected[i]).epsilon(1e-6));
    }
  };
  near("scales", code.scales_at());
  near("mean", code.mean_at());
  const std::vector<float> numbers = decoded(code, coded);
  const std::vector<float> theirs = floats_of(golden, "decoded", DType::kF32);
  double worst = 0.0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    // They are rounded to bf16.
    worst = std::max(worst, std::abs(static_cast<double>(numbers[i]) - theirs[i]) /
                                std::max(1e-6, static_cast<double>(std::abs(theirs[i]))));
  }
  CHECK(worst < 0x1p-8);
}

TEST_CASE("parts of a matrix decode to the numbers of the whole", "[parity][quantization]") {
  const SafetensorsFile golden("tests/golden/nf4.safetensors");
  const std::vector<float> weight = floats_of(golden, "weight", DType::kBF16);
  const Nf4Code all{.rows = 70, .columns = 256, .all_rows = 70, .all_columns = 256};
  const std::vector<float> whole = decoded(all, encoded(all, weight));
  for (Nf4Code part : {Nf4Code{.rows = 35, .columns = 256, .first_row = 35},
                       Nf4Code{.rows = 70, .columns = 64, .first_column = 128}}) {
    part.all_rows = 70;
    part.all_columns = 256;
    const std::vector<float> numbers = decoded(part, encoded(part, weight));
    std::int64_t other = 0;
    for (std::int64_t i = 0; i < part.numel(); ++i) {
      const std::int64_t at =
          (part.first_row + i / part.columns) * 256 + part.first_column + i % part.columns;
      other += numbers[static_cast<std::size_t>(i)] == whole[static_cast<std::size_t>(at)] ? 0 : 1;
    }
    CHECK(other == 0);
  }
}

json in_4_bits(const AdaptedRuns& runs, bool coded) {
  return merged(runs.adapters(), {{"quantization_config", {{"load_in_4bit", coded}}}});
}

TEST_CASE("adapters beside weights in 4 bits follow one rank in every layout",
          "[parity][quantization]") {
  const AdaptedRuns runs;
  const std::vector<json> alone = runs.train("coded", 4, 1, in_4_bits(runs, true));
  const std::vector<json> plain = runs.train("plain", 4, 1, in_4_bits(runs, false));
  CHECK(alone.front().at("loss") != plain.front().at("loss"));
  CHECK(alone.front().at("loss").get<double>() ==
        Approx(plain.front().at("loss").get<double>()).epsilon(0.02));
  runs.check_layouts(in_4_bits(runs, true));
}

TEST_CASE("adapters beside weights in 8 bits follow one rank in every layout",
          "[parity][quantization]") {
  const AdaptedRuns runs;
  const json in_8_bits =
      merged(runs.adapters(), {{"quantization_config", {{"load_in_8bit", true}}}});
  const std::vector<json> coded = runs.train("coded", 4, 1, in_8_bits);
  const std::vector<json> plain = runs.train("plain", 4, 1, runs.adapters());
  CHECK(coded.front().at("loss") != plain.front().at("loss"));
  CHECK(coded.front().at("loss").get<double>() ==
        Approx(plain.front().at("loss").get<double>()).epsilon(0.002));
  runs.check_layouts(in_8_bits);
  runs.check_layouts(merged(in_8_bits, {{"peft", {{"use_dora", true}}}}));
}

TEST_CASE("a run beside weights in 4 bits goes on as if it had not stopped",
          "[parity][quantization]") {
  const AdaptedRuns runs;
  runs.check_resume(merged(in_4_bits(runs, true),
                           {{"bf16", {{"enabled", true}}}, {"zero_optimization", {{"stage", 3}}}}));
}

}  // namespace
}  // namespace dstrain::test
