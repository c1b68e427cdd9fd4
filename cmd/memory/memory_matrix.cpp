#include "cmd/memory/memory_matrix.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/amount_text.h"
#include "engine/config/config_error.h"
#include "engine/config/zero_stage.h"
#include "engine/train/make_run_plan.h"

namespace dstrain {
namespace {

constexpr std::array kGranularities = {
    RecomputeGranularity::kNone, RecomputeGranularity::kSelective, RecomputeGranularity::kFull};

/// The name as the config spells it.
std::string_view spelt(RecomputeGranularity granularity) {
  switch (granularity) {
    case RecomputeGranularity::kNone:
      return "none";
    case RecomputeGranularity::kSelective:
      return "selective";
    case RecomputeGranularity::kFull:
      return "full";
  }
  return "?";
}

/// Columns of the text: the components that go together when one has to choose a row.
struct MatrixColumn {
  std::string_view name;
  std::vector<MemoryComponent> parts;
};
const std::vector<MatrixColumn>& columns() {
  static const std::vector<MatrixColumn> all = {
      {"parameters", {MemoryComponent::kParameters}},
      {"gradients", {MemoryComponent::kGradients}},
      {"optimizer", {MemoryComponent::kOptimizer}},
      {"activations",
       {MemoryComponent::kAttentionActivations, MemoryComponent::kMlpActivations,
        MemoryComponent::kNormActivations, MemoryComponent::kOtherActivations}},
      {"logits", {MemoryComponent::kLogits}},
      {"buffers", {MemoryComponent::kGatherBuffers, MemoryComponent::kBuckets}},
      {"workspace", {MemoryComponent::kWorkspace}}};
  return all;
}

bool fits(const MatrixRow& row, const MemoryLimit& limit) {
  return row.total_bytes() <= limit.bytes;
}

MatrixRow row_of(const Config& config, int world_size, const EstimatedDevice& device) {
  MatrixRow row;
  const Schedule schedule = schedule_of(config);
  for (const int rank : ranks_that_stand_for_all(config, world_size)) {
    const RunPlan plan = make_run_plan(config, world_size, rank, schedule);
    const std::int64_t overhead = total_bytes(library_overhead(plan, device));
    if (plan.memory.bytes() + overhead > row.total_bytes()) {
      row.rank = rank;
      row.bytes = component_bytes(plan.blueprint, plan.memory);
      row.overhead_bytes = overhead;
    }
  }
  return row;
}

/// One field of CSV: quoted where it must be (RFC 4180).
std::string field(std::string text) {
  if (text.find_first_of(",\"\n") == std::string::npos) {
    return text;
  }
  for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) {
    text.insert(at, "\"");
  }
  return "\"" + text + "\"";
}

}  // namespace

std::vector<MatrixRow> memory_matrix(const ConfigWith& config_with,
                                     int world_size,
                                     const EstimatedDevice& device) {
  const Config as_it_is = config_with({}).config;
  std::vector<MatrixRow> rows;
  for (const int stage : kZeroStages) {
    for (const RecomputeGranularity granularity : kGranularities) {
      MatrixRow row;
      try {
        const LoadedConfig changed = config_with(
            {fmt::format("zero_optimization.stage={}", stage),
             fmt::format("activation_checkpointing.granularity={}", spelt(granularity))});
        row = row_of(changed.config, world_size, device);
        row.as_configured = changed.config.zero == as_it_is.zero &&
                            changed.config.recompute.granularity == as_it_is.recompute.granularity;
      } catch (const ConfigError& error) {
        row.refused = error.what();
      }
      row.zero_stage = stage;
      row.recompute = granularity;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::string matrix_text(const std::vector<MatrixRow>& rows,
                        const std::optional<MemoryLimit>& limit) {
  std::int64_t largest = 0;
  for (const MatrixRow& row : rows) {
    largest = std::max(largest, row.total_bytes());
  }
  const SizeUnit unit = unit_for(largest);
  std::string text = fmt::format("{} of the rank that holds most\nZeRO  recompute", unit.name);
  for (const MatrixColumn& column : columns()) {
    text += fmt::format("  {:>9}", column.name);
  }
  text += fmt::format("  {:>9}  {:>9}{}\n", "libraries", "total", limit ? "  fits" : "");
  for (const MatrixRow& row : rows) {
    text += fmt::format("{:>4}  {:<9}", row.zero_stage, spelt(row.recompute));
    if (!row.refused.empty()) {
      text += "  " + row.refused + "\n";
      continue;
    }
    for (const MatrixColumn& column : columns()) {
      std::int64_t bytes = 0;
      for (const MemoryComponent part : column.parts) {
        bytes += row.bytes[part];
      }
      text +=
          fmt::format("  {:>{}}", unit.number(bytes), std::max<std::size_t>(9, column.name.size()));
    }
    text += fmt::format("  {:>9}  {:>9}", unit.number(row.overhead_bytes),
                        unit.number(row.total_bytes()));
    text += limit ? (fits(row, *limit) ? "  yes " : "  no  ") : "";
    text += row.as_configured ? "  ◂ as configured\n" : "\n";
  }
  return text;
}

std::string matrix_json(const std::vector<MatrixRow>& rows,
                        const std::optional<MemoryLimit>& limit) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const MatrixRow& row : rows) {
    nlohmann::ordered_json object = {{"zero_stage", row.zero_stage},
                                     {"recompute", spelt(row.recompute)},
                                     {"as_configured", row.as_configured}};
    if (!row.refused.empty()) {
      object["refused"] = row.refused;
      json.push_back(std::move(object));
      continue;
    }
    object["rank"] = row.rank;
    for (const MemoryComponent component : kMemoryComponents) {
      object["bytes"][std::string(key_of(component))] = row.bytes[component];
    }
    object["bytes"]["overhead"] = row.overhead_bytes;
    object["bytes"]["total"] = row.total_bytes();
    if (limit) {
      object["fits"] = fits(row, *limit);
    }
    json.push_back(std::move(object));
  }
  return json.dump(2) + "\n";
}

std::string matrix_csv(const std::vector<MatrixRow>& rows,
                       const std::optional<MemoryLimit>& limit) {
  std::string text = "zero_stage,recompute,as_configured,rank";
  for (const MemoryComponent component : kMemoryComponents) {
    text += fmt::format(",{}", key_of(component));
  }
  text += fmt::format(",overhead,total{},refused\n", limit ? ",fits" : "");
  for (const MatrixRow& row : rows) {
    const bool refused = !row.refused.empty();
    text += fmt::format("{},{},{},", row.zero_stage, spelt(row.recompute), row.as_configured);
    text += refused ? "" : fmt::format("{}", row.rank);
    for (const MemoryComponent component : kMemoryComponents) {
      text += refused ? "," : fmt::format(",{}", row.bytes[component]);
    }
    text += refused ? ",," : fmt::format(",{},{}", row.overhead_bytes, row.total_bytes());
    if (limit) {
      text += refused ? "," : fmt::format(",{}", fits(row, *limit));
    }
    text += "," + field(row.refused) + "\n";
  }
  return text;
}

}  // namespace dstrain
