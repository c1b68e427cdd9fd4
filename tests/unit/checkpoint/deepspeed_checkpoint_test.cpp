#include "engine/checkpoint/foreign/deepspeed/deepspeed_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/safetensors.h"
#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"

using namespace dstrain;

namespace {

namespace fs = std::filesystem;

const fs::path kGolden = DSTRAIN_UNPACKED "/deepspeed-checkpoints";

/// A golden tensor as fp32. zero_to_fp32 leaves frozen parameters in 16 bits.
std::vector<float> floats_of(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const auto bytes = file.data(entry);
  std::vector<float> values(bytes.size() / (entry.dtype == "F32" ? 4 : 2));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (entry.dtype == "F32") {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    } else if (entry.dtype == "BF16") {
      BF16 value{};
      std::memcpy(&value, bytes.data() + 2 * i, 2);
      values[i] = to_float(value);
    } else {
      REQUIRE(entry.dtype == "F16");
      F16 value{};
      std::memcpy(&value, bytes.data() + 2 * i, 2);
      values[i] = to_float(value);
    }
  }
  return values;
}

std::vector<float> whole(const DeepSpeedCheckpoint& checkpoint,
                         const DeepSpeedTensor& tensor,
                         StoredState state) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  checkpoint.read(tensor, state, 0, values);
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

/// Every tensor that DeepSpeed's own tools gave, whole and in pieces. Returns the names that the
/// checkpoint has besides.
std::set<std::string> compare(const DeepSpeedCheckpoint& checkpoint,
                              int mp_rank,
                              const fs::path& golden) {
  const SafetensorsFile expected(golden);
  const DeepSpeedTensors& tensors = checkpoint.tensors(mp_rank);
  std::set<std::string> others;
  for (const auto& [name, tensor] : tensors) {
    others.insert(name);
  }
  for (const auto& [key, entry] : expected.tensors()) {
    INFO(key);
    const std::size_t slash = key.find('/');
    const std::string name = key.substr(slash + 1);
    const auto state = std::find_if(kStoredStates.begin(), kStoredStates.end(),
                                    [&](auto s) { return name_of(s) == key.substr(0, slash); });
    REQUIRE(state != kStoredStates.end());
    REQUIRE(tensors.contains(name));
    const DeepSpeedTensor& tensor = tensors.at(name);
    CHECK(tensor.shape == entry.shape);
    REQUIRE(tensor.has(*state));
    const std::vector<float> values = floats_of(expected, entry);
    CHECK(same_bits(whole(checkpoint, tensor, *state), values));
    for (std::size_t first = 0; first < values.size(); first += 5) {
      std::vector<float> piece(std::min<std::size_t>(5, values.size() - first));
      checkpoint.read(tensor, *state, static_cast<std::int64_t>(first), piece);
      CHECK(std::memcmp(piece.data(), values.data() + first, piece.size() * 4) == 0);
    }
    others.erase(name);
  }
  return others;
}

struct Case {
  std::string name;
  int zero_stage = 0;
  int num_dp_ranks = 1;
  std::string working_dtype;
  std::set<std::string> others;  ///< what zero_to_fp32 does not give
};

}  // namespace

TEST_CASE("weights are those of zero_to_fp32 and moments those of DeepSpeed, bit for bit",
          "[checkpoint][deepspeed]") {
  const Case c = GENERATE(
      // Without ZeRO there is no zero_to_fp32; the golden file has the module's parameters.
      Case{"none-fp32", 0, 1, "F32", {"lm_head.weight", "scale", "seen"}},
      Case{"zero1-bf16", 1, 2, "BF16", {"frozen.weight"}},
      // DeepSpeed's BF16 optimizer leaves out zero_stage, so zero_to_fp32 refuses its checkpoints;
      // the golden file has the masters that DeepSpeed gave before saving.
      Case{"zero1-accumulate-fp32",
           1,
           2,
           "BF16",
           {"frozen.weight", "lm_head.weight", "scale", "seen"}},
      Case{"zero2-fp16", 2, 3, "F16", {}}, Case{"zero2-fp32", 2, 2, "F32", {}},
      Case{"zero2-round-robin", 2, 2, "F32", {}}, Case{"zero3-bf16", 3, 2, "BF16", {}},
      Case{"zero3-fp16", 3, 3, "F16", {}});
  INFO(c.name);
  const DeepSpeedCheckpoint checkpoint(kGolden / c.name);
  CHECK(checkpoint.folder() == kGolden / c.name / "global_step2");
  CHECK_FALSE(checkpoint.is_universal());
  CHECK(checkpoint.zero_stage() == c.zero_stage);
  CHECK(checkpoint.num_dp_ranks() == c.num_dp_ranks);
  CHECK(checkpoint.num_mp_ranks() == 1);
  CHECK(checkpoint.progress().global_steps == 2);
  CHECK(checkpoint.progress().global_samples == 4 * c.num_dp_ranks);
  CHECK(checkpoint.progress().skipped_steps == 0);
  CHECK(checkpoint.progress().scheduler_step == 2);
  CHECK(checkpoint.optimizer_step() == 2);
  CHECK(checkpoint.loss_scale().has_value() == (c.working_dtype == "F16"));
  CHECK(checkpoint.working_dtype() == c.working_dtype);
  CHECK(checkpoint.has_masters());
  CHECK(compare(checkpoint, 0, kGolden / c.name / "expected.safetensors") == c.others);
  CHECK(checkpoint.model_states(0).at("note").text("note") == "after two steps");

  const DeepSpeedTensors& tensors = checkpoint.tensors(0);
  CHECK(tensors.at("lm_head.weight").shared_with == "wte.weight");
  CHECK(tensors.at("wte.weight").shared_with.empty());
  CHECK(tensors.at("wte.weight").dtype == "F32");
  CHECK(tensors.at("wte.weight").has(StoredState::kExpAvg));
  CHECK(tensors.at("scale").role == StoredRole::kBuffer);
  CHECK(tensors.at("seen").dtype == "I64");
  CHECK(whole(checkpoint, tensors.at("seen"), StoredState::kFp32) == std::vector<float>{3, 5});
  CHECK_FALSE(tensors.contains("mask"));
  const DeepSpeedTensor& frozen = tensors.at("frozen.weight");
  CHECK((frozen.role == StoredRole::kFrozen) == (c.zero_stage > 0));
  CHECK(frozen.dtype == c.working_dtype);
  CHECK_FALSE(frozen.has(StoredState::kExpAvg));
}

TEST_CASE("stage 1 keeps frozen parameters, which zero_to_fp32 drops", "[checkpoint][deepspeed]") {
  // The same seed made both models; one of them was rounded.
  const DeepSpeedCheckpoint rounded(kGolden / "zero1-bf16");
  const DeepSpeedCheckpoint exact(kGolden / "zero2-fp32");
  auto values = whole(exact, exact.tensors(0).at("frozen.weight"), StoredState::kFp32);
  for (float& value : values) {
    value = to_float(to_bf16(value));
  }
  CHECK(same_bits(whole(rounded, rounded.tensors(0).at("frozen.weight"), StoredState::kFp32),
                  values));
}

TEST_CASE("each tensor-parallel rank has its own slices", "[checkpoint][deepspeed]") {
  const DeepSpeedCheckpoint checkpoint(kGolden / "zero1-tp2");
  REQUIRE(checkpoint.num_mp_ranks() == 2);
  CHECK(checkpoint.num_dp_ranks() == 2);
  CHECK(compare(checkpoint, 0, kGolden / "zero1-tp2/expected-0.safetensors") ==
        std::set<std::string>{"frozen.weight"});
  // DeepSpeed's rank 0 alone writes down which parameters are shared.
  CHECK(compare(checkpoint, 1, kGolden / "zero1-tp2/expected-1.safetensors") ==
        std::set<std::string>{"frozen.weight", "lm_head.weight"});
  const DeepSpeedTensors& second = checkpoint.tensors(1);
  CHECK(second.at("lm_head.weight").shared_with == "wte.weight");
  CHECK_FALSE(
      same_bits(whole(checkpoint, second.at("wte.weight"), StoredState::kFp32),
                whole(checkpoint, checkpoint.tensors(0).at("wte.weight"), StoredState::kFp32)));
}

TEST_CASE("a universal checkpoint holds what it was made from", "[checkpoint][deepspeed]") {
  const std::string name = GENERATE("zero2-fp32", "zero3-bf16");
  const DeepSpeedCheckpoint checkpoint(kGolden / name / "global_step2_universal");
  CHECK(checkpoint.is_universal());
  CHECK_FALSE(checkpoint.zero_stage());
  CHECK(checkpoint.num_mp_ranks() == 1);
  CHECK(checkpoint.progress().global_steps == 2);
  // ds_to_universal writes no step.pt from stage 3.
  CHECK(checkpoint.optimizer_step() ==
        (name == "zero2-fp32" ? std::optional<std::int64_t>(2) : std::nullopt));
  CHECK(checkpoint.has_masters());
  CHECK(checkpoint.working_dtype() == (name == "zero2-fp32" ? "F32" : "BF16"));
  CHECK(compare(checkpoint, 0, kGolden / name / "expected.safetensors").empty());
}

TEST_CASE("a universal checkpoint of two tensor-parallel ranks has whole parameters",
          "[checkpoint][deepspeed]") {
  const DeepSpeedCheckpoint checkpoint(kGolden / "zero1-tp2/global_step2_universal");
  CHECK(checkpoint.num_mp_ranks() == 2);
  const SafetensorsFile first(kGolden / "zero1-tp2/expected-0.safetensors");
  const SafetensorsFile second(kGolden / "zero1-tp2/expected-1.safetensors");
  // ds_to_universal had no information about the model, so it joined all slices along dim 0.
  int num_compared = 0;
  for (const auto& [key, entry] : first.tensors()) {
    const std::string name = key.substr(key.find('/') + 1);
    const DeepSpeedTensor& tensor = checkpoint.tensors(0).at(name);
    if (tensor.role != StoredRole::kTrained) {
      continue;
    }
    auto expected = floats_of(first, entry);
    const auto rest =
        floats_of(second, second.tensors().at(name == "lm_head.weight" ? "fp32/wte.weight" : key));
    expected.insert(expected.end(), rest.begin(), rest.end());
    const auto state = *std::find_if(kStoredStates.begin(), kStoredStates.end(), [&](auto s) {
      return name_of(s) == key.substr(0, key.find('/'));
    });
    CHECK(same_bits(whole(checkpoint, tensor, state), expected));
    ++num_compared;
  }
  CHECK(num_compared == 25);  // 8 parameters with 3 states, and the tied head
  // Parameters that are not trained are not under `zero`: each rank has its own.
  const DeepSpeedTensors& others = checkpoint.tensors(1);
  CHECK(others.size() == 3);
  CHECK_FALSE(
      same_bits(whole(checkpoint, others.at("frozen.weight"), StoredState::kFp32),
                whole(checkpoint, checkpoint.tensors(0).at("frozen.weight"), StoredState::kFp32)));
}

TEST_CASE("masters of a 16-bit run without ZeRO are named by what they round to",
          "[checkpoint][deepspeed]") {
  const DeepSpeedCheckpoint checkpoint(kGolden / "zero0-bf16");
  CHECK(checkpoint.zero_stage() == 0);
  CHECK(checkpoint.has_masters());
  CHECK(checkpoint.working_dtype() == "BF16");
  // The same seed, batches and settings as in stage 1, whose masters DeepSpeed names.
  const DeepSpeedCheckpoint other(kGolden / "zero1-bf16");
  for (const char* name : {"wte.weight", "ln.weight", "ln.bias", "fc.weight", "fc.bias",
                           "proj.weight", "proj.bias", "gain"}) {
    CAPTURE(name);
    const DeepSpeedTensor& found = checkpoint.tensors(0).at(name);
    REQUIRE(found.has(StoredState::kExpAvg));
    const auto masters = whole(checkpoint, found, StoredState::kFp32);
    const auto named = whole(other, other.tensors(0).at(name), StoredState::kFp32);
    REQUIRE(masters.size() == named.size());
    for (std::size_t i = 0; i < masters.size(); ++i) {
      CHECK(masters[i] == Approx(named[i]).margin(0.03));  // clipping differs, steps are of 1e-2
    }
  }
  CHECK_FALSE(checkpoint.tensors(0).at("frozen.weight").has(StoredState::kExpAvg));
}
