#include "engine/checkpoint/manifest.h"

#include <catch2/catch.hpp>

#include "engine/base/checksum.h"
#include "engine/checkpoint/checkpoint_error.h"

using namespace dstrain;
using Catch::Matchers::Contains;

namespace {

StoredPiece piece(Shape start, Shape extent, Range flat) {
  return {.file = 0, .key = "k", .range = {start, extent, flat}, .checksum = 1};
}

Manifest manifest_of(Shape shape, std::vector<StoredPiece> pieces) {
  Manifest manifest;
  manifest.training.step = 7;
  manifest.files.push_back({.name = "rank-00000.safetensors", .bytes = 8, .header_checksum = 2});
  manifest.tensors["weight"] = {.shape = shape, .states = {{"parameter", std::move(pieces)}}};
  return manifest;
}

std::string fault(Shape shape, std::vector<StoredPiece> pieces) {
  return fault_of_cover(manifest_of(shape, std::move(pieces))).value_or("none");
}

}  // namespace

TEST_CASE("a cover is exact or its fault is named", "[checkpoint]") {
  const Shape zero{0, 0};
  const Shape whole{4, 6};
  CHECK(fault(whole, {piece(zero, whole, {0, 24})}) == "none");
  CHECK(fault(whole, {piece(zero, whole, {10, 24}), piece(zero, whole, {0, 10})}) == "none");
  CHECK(fault(whole, {piece(zero, {4, 3}, {0, 12}), piece({0, 3}, {4, 3}, {0, 12})}) == "none");

  CHECK_THAT(fault(whole, {piece(zero, whole, {0, 23})}),
             Contains("\"weight\"") && Contains("[23, 24)") && Contains("in no file"));
  CHECK_THAT(fault(whole, {piece(zero, whole, {1, 24})}), Contains("[0, 1)"));
  CHECK_THAT(fault(whole, {piece(zero, whole, {0, 9}), piece(zero, whole, {10, 24})}),
             Contains("[9, 10)") && Contains("in no file"));
  CHECK_THAT(fault(whole, {piece(zero, whole, {0, 11}), piece(zero, whole, {10, 24})}),
             Contains("[10, 11)") && Contains("twice"));
  CHECK_THAT(fault(whole, {piece(zero, whole, {0, 24}), piece(zero, whole, {0, 24})}),
             Contains("twice"));
  CHECK_THAT(fault(whole, {piece(zero, {4, 3}, {0, 12})}), Contains("12 of 24"));
  CHECK_THAT(fault(whole, {piece(zero, {4, 3}, {0, 12}), piece({0, 2}, {4, 4}, {0, 16})}),
             Contains("overlap"));
}

TEST_CASE("a manifest is read as it was written", "[checkpoint]") {
  Manifest manifest = manifest_of({2, 3}, {piece({0, 0}, {2, 3}, {0, 6})});
  manifest.training = {.step = 7,
                       .consumed_samples = 6,
                       .optimizer_step = 5,
                       .scheduler_step = 4,
                       .skipped_steps = 3,
                       .consecutive_skips = 2,
                       .loss_scale = 0x1p40 / 3.0,
                       .scaler_iteration = 9,
                       .last_overflow = -1,
                       .hysteresis = 8,
                       .seed = UINT64_MAX,
                       .config = "{\"a\": \"\\u00fc\"}",
                       .fp8_amax = {{"blocks.0.mlp.up/input", {{12, 3}, {0, -41}}},
                                    {"blocks.0.mlp.up/weight", {{7, -2}}}},
                       .optimizer_numbers = {{"trust ratio", {1.0 / 3.0, 0x1p-1074}}, {"x", {}}},
                       .tokenizer = TokenizerIdentity{.kind = "sentencepiece",
                                                      .hash = "00ff",
                                                      .vocab_size = 300,
                                                      .file = "tokenizer.model",
                                                      .document_end = 2},
                       .data = {{"data/train", "0123"}, {"a \"b\"/train", "4567"}},
                       .base = BaseWeights{"/models/one", "0123456789abcdef"}};
  manifest.tensors["weight"].states["exp_avg"] = {
      {.key = "m", .range = {{0, 0}, {2, 3}, {0, 6}}, .dtype = DType::kBF16, .checksum = 3}};
  manifest.rollouts = 0xfedcba9876543210U;
  const Manifest read = parse_manifest(to_text(manifest));
  CHECK(read.training == manifest.training);
  CHECK(read.rollouts == manifest.rollouts);
  REQUIRE(read.files.size() == 1);
  CHECK(read.files[0].name == "rank-00000.safetensors");
  CHECK(read.files[0].header_checksum == 2);
  const StoredPiece& stored = read.tensors.at("weight").states.at("parameter").at(0);
  CHECK(stored.key == "k");
  CHECK(stored.range.extent == Shape{2, 3});
  CHECK(stored.range.flat == Range{0, 6});
  CHECK(stored.dtype == DType::kF32);
  CHECK(stored.checksum == 1);
  CHECK(read.tensors.at("weight").states.at("exp_avg").at(0).dtype == DType::kBF16);
}

TEST_CASE("manifests of formats 3 to 6 are read: what they do not have is not known",
          "[checkpoint]") {
  Manifest manifest = manifest_of({2}, {piece({0}, {2}, {0, 2})});
  manifest.training.config = "{}";
  const std::string text = to_text(manifest);
  std::string rest = text.substr(text.find('\n') + 1);
  const auto as_format = [](int format, const std::string& body) {
    return "{\"dstrain_checkpoint\": " + std::to_string(format) + ", \"xxh3_64\": \"" +
           checksum_text(checksum(body)) + "\",\n" + body;
  };
  REQUIRE(as_format(7, rest) == text);
  const auto without = [&](const std::string& added, int format) {
    REQUIRE(rest.find(added) != std::string::npos);
    rest.erase(rest.find(added), added.size());
    CHECK(parse_manifest(as_format(format - 1, rest)).training == manifest.training);
    CHECK_THROWS_WITH(parse_manifest(as_format(format, rest)), Contains("not those of its format"));
  };
  without("\"rollouts\": null,\n", 7);
  without("\"base\": null,\n", 6);
  without("\"optimizer\": {},\n", 5);
  without("\"tokenizer\": null,\n\"data\": {},\n", 4);
}

TEST_CASE("a manifest with any bit changed, or cut anywhere, is refused", "[checkpoint]") {
  const std::string text = to_text(manifest_of({2, 3}, {piece({0, 0}, {2, 3}, {0, 6})}));
  REQUIRE_NOTHROW(parse_manifest(text));
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      CAPTURE(at, bit);
      REQUIRE_THROWS_AS(parse_manifest(damaged), CheckpointError);
    }
    REQUIRE_THROWS_AS(parse_manifest(text.substr(0, at)), CheckpointError);
  }
  CHECK_THROWS_AS(parse_manifest(text + "\n"), CheckpointError);
}

TEST_CASE("a manifest of another format says so", "[checkpoint]") {
  CHECK_THROWS_WITH(parse_manifest("{\"dstrain_checkpoint\": 9, \"xxh3_64\": \"0\",\n}"),
                    Contains("format 9") && Contains("reads formats 1 to 7"));
  CHECK_THROWS_WITH(parse_manifest("{\"dstrain_checkpoint\": 0, \"xxh3_64\": \"0\",\n}"),
                    Contains("format 0"));
}

TEST_CASE("a manifest of format 1 is read: nothing was skipped, no loss was scaled",
          "[checkpoint]") {
  const auto manifest = [](int format, const std::string& more) {
    const std::string rest =
        R"("training": {"step": 7, "consumed_samples": 6, "optimizer_step": 5, "scheduler_step": 4)" +
        more + R"(, "seed": 3},
"config": "{}",
"files": [
  {"name": "rank-00000.safetensors", "bytes": 8, "header_xxh3_64": "0000000000000002"}],
"tensors": {
  "weight": {"shape": [2], "states": {
    "parameter": [
      {"file": "rank-00000.safetensors", "key": "k", "box_start": [0], "box_extent": [2],
       "flat": [0, 2], "dtype": "F32", "xxh3_64": "0000000000000001"}]}}}
}
)";
    return "{\"dstrain_checkpoint\": " + std::to_string(format) + ", \"xxh3_64\": \"" +
           checksum_text(checksum(rest)) + "\",\n" + rest;
  };
  const Manifest old = parse_manifest(manifest(1, ""));
  CHECK(old.training == TrainingState{.step = 7,
                                      .consumed_samples = 6,
                                      .optimizer_step = 5,
                                      .scheduler_step = 4,
                                      .skipped_steps = 0,
                                      .consecutive_skips = 0,
                                      .loss_scale = 0.0,
                                      .scaler_iteration = 0,
                                      .last_overflow = 0,
                                      .hysteresis = 0,
                                      .seed = 3,
                                      .config = "{}"});
  CHECK(old.tensors.at("weight").states.at("parameter").at(0).dtype == DType::kF32);

  const std::string skips =
      R"(, "skipped_steps": 1, "consecutive_skips": 1, "loss_scale": 2.5, "scaler_iteration": 1,
          "last_overflow": 1, "hysteresis": 1)";
  CHECK(parse_manifest(manifest(2, skips)).training.loss_scale == 2.5);
  // The first line is not under the checksum: a format that its keys deny is damage.
  CHECK_THROWS_WITH(parse_manifest(manifest(1, skips)), Contains("not those of its format"));
  CHECK_THROWS_WITH(parse_manifest(manifest(2, "")), Contains("not those of its format"));
}

TEST_CASE("the checksum is XXH3 with 64 bits", "[checkpoint]") {
  // The value that xxHash publishes for no bytes at all.
  CHECK(checksum(std::string_view()) == 0x2d06800538d394c2U);
  std::uint64_t value = 0;
  CHECK(parse_checksum(checksum_text(0x0123456789abcdefU), value));
  CHECK(value == 0x0123456789abcdefU);
  CHECK_FALSE(parse_checksum("0123456789abcde", value));
  CHECK_FALSE(parse_checksum("0123456789abcdeg", value));
}
