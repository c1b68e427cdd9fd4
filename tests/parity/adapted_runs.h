// AdaptedRuns: runs of adapters beside weights that lie in a folder, which every layout must follow
// one rank in, and which must go on after a stop as if there had been none.
#pragma once

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/conversion.h"
#include "tests/harness/resumable_run.h"

namespace dstrain::test {

class AdaptedRuns {
 public:
  using json = nlohmann::json;

  AdaptedRuns() {
    train("one", 1, 1, wide());
    convert_checkpoint({.from = folder_.path() / "one",
                        .to = folder_.path() / "base",
                        .format = TargetFormat::kHuggingFace},
                       {});
  }
  /// The changes that make a run one of adapters beside those weights.
  [[nodiscard]] json adapters() const {
    return merged(wide(), {{"model", {{"initial_weights", path("base")}}},
                           {"peft", {{"r", 4}, {"target_modules", "all-linear"}}}});
  }
  [[nodiscard]] std::string path(const std::string& output) const {
    return (folder_.path() / output).string();
  }
  [[nodiscard]] LoadedConfig config(const std::string& output,
                                    int steps,
                                    int ranks,
                                    const json& changes) const {
    return config_of(folder_, output, steps, ranks, changes);
  }
  std::vector<json> train(const std::string& output,
                          int steps,
                          int ranks,
                          const json& changes) const {
    run(config(output, steps, ranks, changes), ranks);
    return metrics_of(folder_, output);
  }

  /// Trains a few steps on one rank and in each layout.
  void check_layouts(const json& changes) const {
    const json longer = {{"data", {{"sequence_length", 20}}}};
    const struct {
      const char* name;
      int ranks;
      json changes;
    } layouts[] = {{"dp2", 2, json::object()},
                   {"zero2", 2, {{"zero_optimization", {{"stage", 2}}}}},
                   {"zero3", 2, {{"zero_optimization", {{"stage", 3}}}}},
                   {"tp2", 2, {{"tensor_parallel", {{"size", 2}}}}},
                   {"pp2", 2, {{"pipeline", {{"stages", 2}}}}},
                   {"cp2", 2, merged(longer, {{"context_parallel", {{"size", 2}}}})},
                   {"recomputed", 1, {{"activation_checkpointing", {{"granularity", "full"}}}}},
                   {"tp2-pp2-zero3", 8,
                    merged(longer, {{"tensor_parallel", {{"size", 2}, {"sequence_parallel", true}}},
                                    {"pipeline", {{"stages", 2}}},
                                    {"zero_optimization", {{"stage", 3}}}})}};
    const std::vector<json> alone = train("alone", 4, 1, changes);
    const std::vector<json> alone_of_20 = train("alone20", 4, 1, merged(changes, longer));
    for (const auto& layout : layouts) {
      INFO(layout.name);
      const std::vector<json> lines =
          train(layout.name, 4, layout.ranks, merged(changes, layout.changes));
      const std::vector<json>& single = layout.changes.contains("data") ? alone_of_20 : alone;
      REQUIRE(lines.size() == single.size());
      for (std::size_t i = 0; i < lines.size(); ++i) {
        CHECK(lines[i].at("loss").get<double>() ==
              Approx(single[i].at("loss").get<double>()).epsilon(1e-5));
        CHECK(lines[i].at("grad_norm").get<double>() ==
              Approx(single[i].at("grad_norm").get<double>()).epsilon(1e-4));
        if (!lines[i].contains("validation_token_accuracy")) continue;
        CHECK(lines[i].at("validation_token_accuracy") ==
              single[i].at("validation_token_accuracy"));
      }
    }
  }

  /// Trains on two ranks, stopped half-way and not.
  void check_resume(const json& changes) const {
    const std::vector<json> straight = train("straight", 8, 2, changes);
    train("stopped", 4, 2, changes);
    CHECK(train("stopped", 8, 2, changes) == straight);
  }

 private:
  static json wide() {
    return {
        {"model", {{"hidden_size", 128}, {"intermediate_size", 256}, {"num_attention_heads", 8}}}};
  }
  RunFolder folder_;
};

}  // namespace dstrain::test
