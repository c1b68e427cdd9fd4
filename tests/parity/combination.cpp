#include "tests/parity/combination.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dstrain::test {
namespace {

constexpr int kSteps = 20;

// AdamW's first updates have the size of the learning rate whatever the gradient's, so that a sum
// taken in another order moves parameters whose gradient is nearly nought; over 20 steps this stays
// far below what a wrong gradient does (1e-4 and more).
constexpr Bound kF32{1e-5, 1e-4, "f32 sums in another order"};

ModelSpec deep(Family family, std::int64_t layers) {
  ModelSpec model = tiny_model(family);
  model.num_layers = layers;
  return model;
}

/// 8 sequences a step, dealt over the ranks and micro-batches.
Combination combination(Family family, std::int64_t layers, int data, std::int64_t micro_batches) {
  return {.data = data,
          .options = {.family = family,
                      .model = deep(family, layers),
                      .micro_batch = 8 / (data * micro_batches),
                      .accumulation = micro_batches,
                      .gradient_clipping = 0.5,
                      .steps = kSteps},
          .bound = kF32};
}

const char* spelt(ScheduleKind schedule) {
  switch (schedule) {
    case ScheduleKind::k1F1B:
      return "1f1b";
    case ScheduleKind::kGpipe:
      return "gpipe";
    case ScheduleKind::kInterleaved:
      return "interleaved";
  }
  return "";
}

using Combinations = std::vector<Combination>;

/// Four ranks share LLaMA's two key/value heads.
void add_tensor_parallel(Combinations& all) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const bool tied : {false, true}) {
      for (const int size : {2, 4}) {
        for (const bool sequence : {false, true}) {
          Combination next = combination(family, 2, 1, 2);
          next.options.tied = tied;
          next.options.tensor_parallel = {.size = size, .sequence_parallel = sequence};
          next.fast = tied;
          all.push_back(next);
        }
      }
    }
  }
}

/// Five blocks, or nine where there are eight chunks: no number of stages divides them.
void add_pipelines(Combinations& all) {
  const PipelineConfig pipelines[] = {
      {.stages = 2},
      {.stages = 2, .partition = {1, 4}},
      {.stages = 2, .schedule = ScheduleKind::kGpipe},
      {.stages = 2, .schedule = ScheduleKind::kGpipe, .partition = {4, 1}},
      {.stages = 2, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2},
      {.stages = 2,
       .schedule = ScheduleKind::kInterleaved,
       .virtual_stages = 2,
       .partition = {1, 1, 2, 1}},
      {.stages = 4},
      {.stages = 4, .partition = {1, 2, 1, 1}},
      {.stages = 4, .schedule = ScheduleKind::kGpipe},
      {.stages = 4, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2},
      {.stages = 4,
       .schedule = ScheduleKind::kInterleaved,
       .virtual_stages = 2,
       .partition = {1, 1, 1, 2, 1, 1, 1, 1}},
  };
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const bool tied : {false, true}) {
      for (const PipelineConfig& pipeline : pipelines) {
        const bool many = pipeline.stages * pipeline.virtual_stages > 4;
        Combination next = combination(family, many ? 9 : 5, 1, 4);
        next.options.tied = tied;
        next.options.pipeline = pipeline;
        next.fast = tied == (family == Family::kLlama);
        all.push_back(next);
      }
    }
  }
  // Fewer micro-batches than stages.
  for (const ScheduleKind schedule : {ScheduleKind::k1F1B, ScheduleKind::kGpipe}) {
    Combination next = combination(Family::kLlama, 5, 1, 1);
    next.options.pipeline = {.stages = 4, .schedule = schedule};
    next.fast = true;
    all.push_back(next);
  }
}

/// Two of the three axes, with every stage of ZeRO.
void add_pairs(Combinations& all) {
  const PipelineConfig pipelines[] = {
      {.stages = 2},
      {.stages = 2, .schedule = ScheduleKind::kGpipe},
      {.stages = 2, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2},
  };
  for (const int zero : {0, 1, 2, 3}) {
    Combination next = combination(Family::kLlama, 5, 2, 2);
    next.options.tied = true;
    next.options.zero_stage = zero;
    next.fast = zero % 2 == 1;
    for (const bool sequence : {false, true}) {
      Combination split = next;
      split.options.tensor_parallel = {.size = 2, .sequence_parallel = sequence};
      all.push_back(split);
    }
    for (const PipelineConfig& pipeline : pipelines) {
      Combination piped = next;
      piped.options.pipeline = pipeline;
      all.push_back(piped);
    }
    Combination no_data = combination(Family::kGpt2, 5, 1, 2);
    no_data.options.zero_stage = zero;
    no_data.fast = next.fast;
    no_data.options.tensor_parallel = {.size = 2, .sequence_parallel = true};
    no_data.options.pipeline = {.stages = 2, .partition = {2, 3}};
    all.push_back(no_data);
  }
}

Combination cube(Family family, int zero, bool sequence, bool tied) {
  Combination next = combination(family, 5, 2, 2);
  next.options.tied = tied;
  next.options.zero_stage = zero;
  next.options.tensor_parallel = {.size = 2, .sequence_parallel = sequence};
  next.options.pipeline = {.stages = 2};
  return next;
}

/// dp × tp × pp = 2 × 2 × 2, with every stage of ZeRO.
void add_cubes(Combinations& all) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const bool sequence : {false, true}) {
        for (const bool tied : {false, true}) {
          all.push_back(cube(family, zero, sequence, tied));
          const bool both = sequence && tied;
          all.back().fast = family == Family::kLlama ? both : !sequence && !tied;
        }
      }
    }
  }
  for (const int zero : {0, 1, 2, 3}) {
    Combination over_tcp = cube(Family::kLlama, zero, true, true);
    over_tcp.carrier = Carrier::kProcesses;
    over_tcp.fast = zero == 3;
    all.push_back(over_tcp);
  }
}

/// Recomputation in backward repeats some of tensor parallelism's traffic.
void add_recomputation(Combinations& all) {
  const RecomputeConfig configs[] = {{RecomputeGranularity::kSelective},
                                     {RecomputeGranularity::kFull},
                                     {RecomputeGranularity::kFull, 2}};
  for (const RecomputeConfig& recompute : configs) {
    Combination split = combination(Family::kLlama, 5, 1, 2);
    split.options.tensor_parallel = {.size = 4};
    Combination shared = split;
    shared.options.tensor_parallel.sequence_parallel = true;
    Combination piped = combination(Family::kGpt2, 5, 1, 4);
    piped.options.pipeline = {
        .stages = 2, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2};
    for (Combination next : {split, shared, piped, cube(Family::kGpt2, 1, false, false),
                             cube(Family::kLlama, 3, true, true)}) {
      next.options.recompute = recompute;
      next.fast = recompute.granularity == RecomputeGranularity::kFull && !recompute.layers;
      all.push_back(next);
    }
  }
}

struct Format {
  const char* name;
  Precision precision;
  FormatConfig formats;
  double loss_scale;
  Bound bound;
};

void add_formats(Combinations& all) {
  // Sums that end in another place round to another neighbour: losses, which are means over all
  // tokens, stay within the format's spacing at 1; norms, over gradients that went through every
  // layer, within 16 of it.
  constexpr Bound kBF16{0x1p-8, 0x1p-4, "values have 8 bits"};
  constexpr Bound kF16{0x1p-10, 0x1p-6, "values have 11 bits"};
  const Format formats[] = {
      {"bf16", Precision::kBF16, {}, 1.0, kBF16},
      {"bf16+sums", Precision::kBF16, {.grad_accum = DType::kBF16}, 1.0, kBF16},
      {"bf16+master",
       Precision::kBF16,
       {.bf16_optimizer_states = true, .bf16_master = true},
       1.0,
       kBF16},
      {"fp16", Precision::kF16, {}, 1024.0, kF16},
  };
  for (const Format& format : formats) {
    Combination split = combination(Family::kLlama, 5, 1, 2);
    split.options.tensor_parallel = {.size = 4, .sequence_parallel = true};
    Combination piped = combination(Family::kGpt2, 5, 1, 4);
    piped.options.tied = true;
    piped.options.pipeline = {.stages = 4};
    for (Combination next :
         {split, piped, cube(Family::kGpt2, 0, false, true), cube(Family::kLlama, 1, true, true),
          cube(Family::kLlama, 3, true, true)}) {
      next.format = format.name;
      next.options.precision = format.precision;
      next.options.formats = format.formats;
      next.options.loss_scale = format.loss_scale;
      next.bound = format.bound;
      next.fast = format.formats == FormatConfig{};
      all.push_back(next);
    }
  }
}

}  // namespace

int Combination::ranks() const {
  return data * options.tensor_parallel.size * options.pipeline.stages;
}

std::int64_t Combination::global_batch() const {
  return options.micro_batch * options.accumulation * data;
}

std::string Combination::name() const {
  const PipelineConfig& pipeline = options.pipeline;
  std::string text =
      fmt::format("{}{} dp{} tp{}{} pp{}", options.family == Family::kGpt2 ? "gpt2" : "llama",
                  options.model->num_layers, data, options.tensor_parallel.size,
                  options.tensor_parallel.sequence_parallel ? "+sp" : "", pipeline.stages);
  if (pipeline.stages > 1) text += fmt::format(" {}", spelt(pipeline.schedule));
  if (!pipeline.partition.empty()) text += fmt::format(" {}", fmt::join(pipeline.partition, "-"));
  text += fmt::format(" zero{}{} {}x{} {}", options.zero_stage, options.tied ? " tied" : "",
                      options.accumulation, options.micro_batch, format);
  const RecomputeConfig& recompute = options.recompute;
  if (recompute.granularity != RecomputeGranularity::kNone) {
    text += recompute.granularity == RecomputeGranularity::kFull ? " full" : " selective";
    if (recompute.layers) text += fmt::format("-{}", *recompute.layers);
  }
  return carrier == Carrier::kProcesses ? text + " sockets" : text;
}

Combination Combination::alone() const {
  Combination one = *this;
  one.data = 1;
  one.carrier = Carrier::kThreads;
  one.options.micro_batch = global_batch();
  one.options.accumulation = 1;
  one.options.zero_stage = 0;
  one.options.tensor_parallel = {};
  one.options.pipeline = {};
  one.options.recompute = {};
  return one;
}

std::vector<Combination> all_combinations() {
  std::vector<Combination> all;
  add_tensor_parallel(all);
  add_pipelines(all);
  add_pairs(all);
  add_cubes(all);
  add_recomputation(all);
  add_formats(all);
  return all;
}

}  // namespace dstrain::test
