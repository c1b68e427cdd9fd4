// Packed documents: each loses what it would alone, whatever shares its sequence; and a run of them
// is the same in every layout, and goes on as if it had never stopped.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/data/batch_loader.h"
#include "engine/data/document_packing.h"
#include "engine/train/make_run_plan.h"
#include "kernels/ignored_target.h"
#include "kernels/math/philox.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain::test {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kEnd = 3;
constexpr std::int64_t kSequence = 24;

/// Documents whose lengths have a heavy tail, kEnd the last token of each and nowhere else.
std::string write_documents(const RunFolder& folder, const std::string& name, std::size_t count) {
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> tokens;
  for (std::size_t d = 0; d < count; ++d) {
    const double uniform = (philox(name.size(), d, 0)[0] + 1.0) / 4294967297.0;
    const double drawn = 1.0 + 4.0 * std::pow(uniform, -1.0 / 1.2);
    lengths.push_back(static_cast<std::int64_t>(std::min(drawn, 200.0)));
    Ids inputs(static_cast<std::size_t>(lengths.back()));
    Ids targets(inputs.size());
    synthetic_sample(static_cast<std::int64_t>(d), 67, inputs, targets);
    std::replace(inputs.begin(), inputs.end(), kEnd, kEnd + 1);
    inputs.back() = kEnd;
    tokens.insert(tokens.end(), inputs.begin(), inputs.end());
  }
  const std::string prefix = (folder.path() / name).string();
  write_file(prefix + ".bin", tokens_as_bytes(tokens, 2));
  write_file(prefix + ".idx", megatron_index_bytes(8, 2, lengths));
  return prefix;
}

/// The config of a run on packed documents that do not see each other.
json packed(const std::string& train) {
  return {{"data",
           {{"train", train},
            {"validation", nullptr},
            {"sequence_length", kSequence},
            {"pack", "best_fit"},
            {"document_attention", true},
            {"mask_document_ends", true},
            {"end_of_document", kEnd}}}};
}

json with(json all, const json& changes) {
  all.merge_patch(changes);
  return all;
}

std::vector<double> column(const RunFolder& folder, const std::string& output, const char* key) {
  std::vector<double> values;
  for (const json& line : metrics_of(folder, output)) {
    values.push_back(line.at(key).get<double>());
  }
  return values;
}

TEST_CASE("a document in a packed sequence loses what it loses alone", "[parity][packing]") {
  const RunFolder folder;
  const std::string prefix = write_documents(folder, "tail", 150);
  const json changes =
      with(packed(prefix), {{"train_batch_size", 1}, {"gradient_accumulation_steps", 1}});
  const LoadedConfig loaded = config_of(folder, "run", 1, 1, changes);
  const Config& config = loaded.config;
  const auto world = make_local_rendezvous(1);
  Engine engine(make_run_plan(config, 1, 0), *world[0], make_cpu_backend(1), 1);
  const BatchLoader loader(config.data, config.data.train, config.model.vocab_size, 1);
  const auto file = TokenFile::open(prefix, config.model.vocab_size);
  const DocumentPacking packing(DocumentIndex::open(prefix), kSequence);
  REQUIRE(packing.num_cut() > 3);
  REQUIRE(packing.fill() > 0.95);

  const auto loss_of = [&](const LoadBatch& load) { return engine.evaluate(load, 0); };
  double packed_sum = 0.0;
  std::int64_t packed_targets = 0;
  for (std::int64_t sample = 0; sample < packing.num_sequences(); ++sample) {
    const Engine::Evaluation one =
        loss_of([&](std::int64_t /*first*/, std::span<std::int32_t> inputs,
                    std::span<std::int32_t> targets) { loader.load(sample, inputs, targets); });
    packed_sum += one.local_loss_sum;
    packed_targets += one.counted;
  }
  // Piece after piece of the file, as the longest sequences that hold them.
  double alone_sum = 0.0;
  std::int64_t alone_targets = 0;
  const DocumentIndex& documents = packing.documents();
  for (std::int64_t document = 0; document < documents.num_documents(); ++document) {
    const std::int64_t end = documents.first_token(document + 1);
    for (std::int64_t begin = documents.first_token(document); begin < end; begin += kSequence) {
      const auto size = static_cast<std::size_t>(std::min(kSequence, end - begin));
      const auto targets_here = begin + kSequence < end ? size : size - 1;
      const Engine::Evaluation one =
          loss_of([&](std::int64_t /*first*/, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> targets) {
            std::fill(inputs.begin(), inputs.end(), kEnd);
            std::fill(targets.begin(), targets.end(), kIgnoredTarget);
            file->read(begin, inputs.first(size));
            file->read(begin + 1, targets.first(targets_here));
          });
      alone_sum += one.local_loss_sum;
      alone_targets += one.counted;
    }
  }
  CHECK(packed_targets == alone_targets);
  CHECK(packed_targets == packing.num_tokens() - packing.num_documents());
  CHECK(packed_sum == Approx(alone_sum).epsilon(1e-6));
}

TEST_CASE("packed documents give one rank's losses in every layout", "[parity][packing]") {
  const RunFolder folder;
  const json mixture = {{{"path", write_documents(folder, "tail", 90)}, {"weight", 2.0}},
                        {{"path", write_documents(folder, "other tail", 70)}, {"weight", 1.0}}};
  for (const bool attention : {true, false}) {
    CAPTURE(attention);
    json common = packed("");
    common["data"]["train"] = mixture;
    common["data"]["weights_by"] = "tokens";
    common["data"]["validation"] = mixture[1]["path"];
    common["data"]["document_attention"] = attention;
    common["data"]["mask_document_ends"] = attention;
    common["gradient_accumulation_steps"] = 1;
    const std::string name = attention ? "documents" : "stream";
    CHECK(run(config_of(folder, name, 6, 1, common), 1).step == 6);
    const std::vector<double> losses = column(folder, name, "loss");
    const std::vector<double> norms = column(folder, name, "grad_norm");
    const double validation = metrics_of(folder, name).back().at("validation_loss").get<double>();
    CHECK(losses.back() < losses.front());
    struct Layout {
      const char* name;
      int ranks;
      json changes;
    };
    const Layout layouts[] = {
        {"accumulation", 1, {{"gradient_accumulation_steps", 4}}},
        {"dp 2, zero 1", 2, {{"zero_optimization", {{"stage", 1}}}}},
        {"dp 4, zero 3", 4, {{"zero_optimization", {{"stage", 3}}}}},
        {"dp 2, zero 2, accumulation",
         2,
         {{"zero_optimization", {{"stage", 2}}}, {"gradient_accumulation_steps", 4}}},
        {"tp 2", 2, {{"tensor_parallel", {{"size", 2}, {"sequence_parallel", true}}}}},
        {"pp 2", 2, {{"pipeline", {{"stages", 2}}}, {"gradient_accumulation_steps", 4}}},
    };
    for (const Layout& layout : layouts) {
      CAPTURE(layout.name);
      const std::string output = name + ", " + layout.name;
      const LoadedConfig config =
          config_of(folder, output, 6, layout.ranks, with(common, layout.changes));
      CHECK(run(config, layout.ranks).step == 6);
      CHECK(worst_relative(column(folder, output, "loss"), losses) < 1e-5);
      CHECK(worst_relative(column(folder, output, "grad_norm"), norms) < 1e-4);
      CHECK(metrics_of(folder, output).back().at("validation_loss").get<double>() ==
            Approx(validation).epsilon(1e-5));
    }
  }
}

TEST_CASE("a run of packed documents continues with the same sequences", "[parity][packing]") {
  const RunFolder folder;
  const json changes = packed(write_documents(folder, "tail", 90));
  const LoadedConfig straight = config_of(folder, "straight", 7, 1, changes);
  CHECK(run(straight, 1).step == 7);
  CHECK(run(config_of(folder, "parts", 3, 1, changes), 1).step == 3);
  CHECK(run(config_of(folder, "parts", 7, 1, changes), 1).step == 7);
  CHECK(metrics_of(folder, "parts") == metrics_of(folder, "straight"));
  CHECK(state_of(folder, "parts", straight) == state_of(folder, "straight", straight));
  // And without packing it is another run.
  json stream = changes;
  stream["data"]["pack"] = "none";
  CHECK(run(config_of(folder, "stream", 7, 1, stream), 1).step == 7);
  CHECK(metrics_of(folder, "stream") != metrics_of(folder, "straight"));
}

}  // namespace
}  // namespace dstrain::test
