// Samples of packed documents: inputs, their targets, and how several sources share a run.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/data/batch_loader.h"
#include "kernels/ignored_target.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::ScratchFolder;
using Ids = std::vector<std::int32_t>;
using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kT = 8;
constexpr std::int32_t kEnd = 999;

/// Documents of these lengths, of ids that count from `first` on, and behind each kEnd, which is
/// one of its tokens.
void write_documents(const std::string& prefix, const Lengths& lengths, std::int64_t first = 1) {
  std::vector<std::int64_t> tokens;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) {
      tokens.push_back(i + 1 == length ? kEnd : first++);
    }
  }
  test::write_file(prefix + ".bin", test::tokens_as_bytes(tokens, 2));
  test::write_file(prefix + ".idx", test::megatron_index_bytes(8, 2, lengths));
}

DataConfig packed(const std::vector<DataSource>& sources) {
  return {.train = sources, .sequence_length = kT, .pack = DocumentPack::kBestFit};
}

BatchLoader loader_of(const DataConfig& data) {
  return {data, data.train, /*vocab_size=*/1000, /*seed=*/7};
}

struct Batch {
  Ids inputs;
  Ids targets;
};

Batch load(const BatchLoader& loader, std::int64_t first, std::int64_t samples) {
  Batch batch{Ids(static_cast<std::size_t>(samples * kT)),
              Ids(static_cast<std::size_t>(samples * kT))};
  loader.load(first, batch.inputs, batch.targets);
  return batch;
}

}  // namespace

TEST_CASE("a token predicts the next one of its sequence, the last of all documents nothing",
          "[data][packing]") {
  const ScratchFolder folder;
  write_documents(folder / "a", {4, 3});  // 1 2 3 end, 4 5 end
  const Batch batch = load(loader_of(packed({{folder / "a"}})), 0, 1);
  constexpr std::int32_t kNothing = kIgnoredTarget;
  CHECK(batch.inputs == Ids{1, 2, 3, kEnd, 4, 5, kEnd, 0});
  CHECK(batch.targets == Ids{2, 3, kEnd, 4, 5, kEnd, kNothing, kNothing});
}

TEST_CASE("a document that is cut predicts its next token across the cut", "[data][packing]") {
  const ScratchFolder folder;
  write_documents(folder / "a", {19});
  const BatchLoader loader = loader_of(packed({{folder / "a.bin"}}));
  REQUIRE(loader.sequences_per_epoch() == 3);
  std::map<std::int32_t, std::int32_t> predicted;
  const Batch batch = load(loader, 0, 3);
  for (std::size_t n = 0; n < batch.inputs.size(); ++n) {
    if (batch.targets[n] != kIgnoredTarget) {
      CHECK(predicted.emplace(batch.inputs[n], batch.targets[n]).second);
    }
  }
  CHECK(predicted.size() == 18);  // every token but the first is asked for once
  for (const auto& [input, target] : predicted) {
    CHECK(target == (input == 18 ? kEnd : input + 1));
  }
  CHECK_THAT(loader.reports().front(),
             Contains("1 document packed into 3 sequences of 8 tokens") &&
                 Contains("79.17 % full; 1 document longer than a sequence"));
}

TEST_CASE("an epoch of packed documents has every token once, in an order of its own",
          "[data][packing]") {
  const ScratchFolder folder;
  const Lengths lengths{3, 1, 20, 7, 8, 9, 2, 2, 5, 40, 6, 4};
  write_documents(folder / "a", lengths);
  DataConfig data = packed({{folder / "a"}});
  data.document_attention = true;
  data.end_of_document = kEnd;
  const BatchLoader loader = loader_of(data);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t sequences = loader.sequences_per_epoch();
  CHECK(sequences == (tokens + kT - 1) / kT);  // as few as can be
  Ids before;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    const Batch batch = load(loader, epoch * sequences, sequences);
    Ids seen;
    std::copy_if(batch.inputs.begin(), batch.inputs.end(), std::back_inserter(seen),
                 [](std::int32_t id) { return id != kEnd; });
    CHECK(seen != before);
    before = seen;
    std::sort(seen.begin(), seen.end());
    REQUIRE(std::ssize(seen) == tokens - std::ssize(lengths));
    for (std::size_t i = 0; i < seen.size(); ++i) {
      CHECK(seen[i] == static_cast<std::int32_t>(i) + 1);
    }
    // Sequences are filled up with ends, each a document of its own.
    CHECK(std::count(batch.inputs.begin(), batch.inputs.end(), kEnd) ==
          sequences * kT - tokens + std::ssize(lengths));
  }
}

TEST_CASE("weights share out samples or tokens", "[data][packing][sampler]") {
  const ScratchFolder folder;
  write_documents(folder / "full", Lengths(40, 8));
  write_documents(folder / "half", Lengths(40, 5), 500);  // two do not fit: 5 of 8 tokens
  DataConfig data = packed({{folder / "full", 1.0}, {folder / "half", 1.0}});
  const auto tokens_of = [&](WeightUnit unit) {
    data.weights_by = unit;
    const Batch batch = load(loader_of(data), 0, 13'000);
    std::vector<double> tokens(2);
    for (std::int64_t n = 0; n < 13'000 * kT; n += kT) {
      const bool is_full = batch.inputs[static_cast<std::size_t>(n)] < 500;
      tokens[is_full ? 0 : 1] += is_full ? 8 : 5;
    }
    return tokens;
  };
  const auto by_samples = tokens_of(WeightUnit::kSamples);
  CHECK(by_samples[0] / by_samples[1] == Approx(8.0 / 5.0).epsilon(1e-3));
  const auto by_tokens = tokens_of(WeightUnit::kTokens);
  CHECK(by_tokens[0] / by_tokens[1] == Approx(1.0).epsilon(1e-3));
  // 5000 and 8000 of the samples, and 40 sequences each.
  const std::vector<double> epochs = loader_of(data).epochs(13'000);
  CHECK(epochs[0] == Approx(125.0).epsilon(1e-3));
  CHECK(epochs[1] == Approx(200.0).epsilon(1e-3));

  data.pack = DocumentPack::kNone;  // samples are full, whatever their source
  const std::vector<double> uncut = loader_of(data).epochs(1000);
  data.weights_by = WeightUnit::kSamples;
  CHECK(loader_of(data).epochs(1000) == uncut);
}

TEST_CASE("documents that do not say where they begin, or how they end, are not packed",
          "[data][packing]") {
  const ScratchFolder folder;
  test::write_file(folder / "stream.bin",
                   test::tokens_as_bytes(std::vector<std::int64_t>(99, 1), 2));
  CHECK_THROWS_WITH(loader_of(packed({{folder / "stream.bin"}})),
                    Contains("stream.bin: nothing says where its documents begin") &&
                        Contains("data.pack \"none\""));
  write_documents(folder / "a", {4, 3});
  DataConfig data = packed({{folder / "a"}});
  data.end_of_document = 5;
  CHECK_NOTHROW(loader_of(data));  // nobody looks for ends
  data.mask_document_ends = true;
  CHECK_THROWS_WITH(loader_of(data), Contains("document 0 ends with token 999") &&
                                         Contains("data.end_of_document is 5"));
}

}  // namespace dstrain
