#include "cmd/check_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/plan/schedule.h"

namespace dstrain {
namespace {

/// "1,008,038,758,400".
std::string grouped(std::int64_t number) {
  std::string text = fmt::format("{}", number);
  for (std::size_t i = text.size(); i > 3; i -= 3) {
    text.insert(i - 3, ",");
  }
  return text;
}

double gibibytes(std::int64_t bytes) {
  constexpr double kGiB = 1 << 30;
  return static_cast<double>(bytes) / kGiB;
}

bool splits_tokens(const Config& config) {
  return config.tensor_parallel.size > 1 && config.tensor_parallel.sequence_parallel;
}

std::int64_t tokens_of_step(const Config& config) {
  return *config.batch.train_batch_size * config.data.sequence_length;
}

/// "0-4, 40-44".
std::string blocks_text(const std::vector<Range>& chunks) {
  std::string text;
  for (const Range& blocks : chunks) {
    text += text.empty() ? "" : ", ";
    text += blocks.size() == 1 ? fmt::format("{}", blocks.begin)
                               : fmt::format("{}-{}", blocks.begin, blocks.end - 1);
  }
  return text;
}

std::string schedule_text(const RunOutline& outline, const Config& config) {
  if (config.pipeline.stages == 1) {
    return "one stage";
  }
  const int chunks = config.pipeline.virtual_stages;
  return fmt::format("{}{}; ranks idle {:.1f} % of a step if a backward takes two forwards",
                     name_of(order_of(config.pipeline.schedule)),
                     chunks > 1 ? fmt::format(", {} chunks of the model a stage", chunks) : "",
                     100.0 * outline.idle_share);
}

std::string table(const std::vector<StageOutline>& stages) {
  std::size_t width = std::string_view("blocks").size();
  for (const StageOutline& stage : stages) {
    width = std::max(width, blocks_text(stage.blocks).size());
  }
  std::string text = fmt::format("stage  {:<{}}  in flight", "blocks", width);
  for (const MemoryGroup group : kMemoryGroups) {
    text += fmt::format("  {}", name_of(group));
  }
  text += "     total\n";
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageOutline& stage = stages[i];
    text += fmt::format("{:>5}  {:<{}}  {:>9}", i, blocks_text(stage.blocks), width,
                        stage.micro_batches_in_flight);
    for (const MemoryGroup group : kMemoryGroups) {
      text += fmt::format("  {:>{}.3f}", gibibytes(stage.bytes[static_cast<std::size_t>(group)]),
                          name_of(group).size());
    }
    text += fmt::format("  {:>8.3f}\n", gibibytes(stage.total_bytes()));
  }
  return text;
}

}  // namespace

std::string to_text(const RunOutline& outline, const Config& config) {
  const Topology& mesh = outline.topology;
  const StageOutline& most = fullest(outline.stages);
  return fmt::format(
      "ranks       {} = {} pipeline × {} data × {} tensor{}; ZeRO stage {}\n"
      "parameters  {}\n"
      "step        {} sequences of {} = {} tokens, in {} micro-batch{} of {}\n"
      "schedule    {}\n"
      "memory      {:.2f} GiB on rank {}, which holds most\n"
      "\n"
      "GiB of the rank that holds most in each pipeline stage:\n{}",
      mesh.world_size(), mesh.degree(Axis::kPipeline), mesh.degree(Axis::kData),
      mesh.degree(Axis::kTensor), splits_tokens(config) ? ", sequence parallel" : "",
      config.zero.stage, grouped(outline.parameters), *config.batch.train_batch_size,
      config.data.sequence_length, grouped(tokens_of_step(config)),
      *config.batch.gradient_accumulation_steps,
      *config.batch.gradient_accumulation_steps == 1 ? "" : "es", *config.batch.micro_batch_size,
      schedule_text(outline, config), gibibytes(most.total_bytes()), most.worst_rank,
      table(outline.stages));
}

std::string to_json(const RunOutline& outline, const Config& config) {
  using Json = nlohmann::ordered_json;
  const Topology& mesh = outline.topology;
  Json json = {{"ranks", mesh.world_size()},
               {"layout",
                {{"pipeline", mesh.degree(Axis::kPipeline)},
                 {"data", mesh.degree(Axis::kData)},
                 {"tensor", mesh.degree(Axis::kTensor)},
                 {"sequence_parallel", splits_tokens(config)},
                 {"zero_stage", config.zero.stage}}},
               {"parameters", outline.parameters},
               {"step",
                {{"sequences", *config.batch.train_batch_size},
                 {"tokens", tokens_of_step(config)},
                 {"micro_batch_size", *config.batch.micro_batch_size},
                 {"micro_batches", *config.batch.gradient_accumulation_steps}}},
               {"schedule",
                {{"order", name_of(order_of(config.pipeline.schedule))},
                 {"chunks", config.pipeline.virtual_stages},
                 {"idle_share", outline.idle_share}}},
               {"stages", Json::array()}};
  for (std::size_t i = 0; i < outline.stages.size(); ++i) {
    const StageOutline& stage = outline.stages[i];
    Json chunks = Json::array();
    for (const Range& blocks : stage.blocks) {
      chunks.push_back({{"begin", blocks.begin}, {"end", blocks.end}});
    }
    Json bytes;
    for (const MemoryGroup group : kMemoryGroups) {
      bytes[name_of(group)] = stage.bytes[static_cast<std::size_t>(group)];
    }
    bytes["total"] = stage.total_bytes();
    json["stages"].push_back({{"stage", i},
                              {"blocks", std::move(chunks)},
                              {"micro_batches_in_flight", stage.micro_batches_in_flight},
                              {"worst_rank", stage.worst_rank},
                              {"bytes", std::move(bytes)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace dstrain
