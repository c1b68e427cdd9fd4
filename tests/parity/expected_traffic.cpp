// N tokens of a micro-batch, C width, t tensor-parallel ranks, m micro-batches of a step
#include "tests/parity/expected_traffic.h"

#include <algorithm>

namespace dstrain::test {
namespace {

class Expectation {
 public:
  Expectation(const Config& config, const RunPlan& plan)
      : config_(config), plan_(plan), compute_bytes_(size_of(dtype_of(config.precision))) {
    gradient_bytes_ = size_of(config.formats.grad_accum.value_or(
        config.formats.bf16_master ? DType::kBF16 : DType::kF32));
  }

  Traffic traffic() {
    add_tensor_parallel();
    add_pipeline();
    add_data_parallel();
    add_replicas();
    add_norm();
    return std::move(traffic_);
  }

 private:
  /// Groups of one put nothing on the wire.
  void add(const char* group, int size, Op op, Purpose purpose, Count count) {
    if (size > 1 && count.calls > 0) {
      Count& sum = traffic_[{group, op, purpose}];
      sum.calls += count.calls;
      sum.bytes += count.bytes;
    }
  }

  /// Of N·C elements each, for each micro-batch. A block: Shoeybi et al. 2019, §3, 4 all-reduces;
  /// Korthikanti et al. 2022, §4.2.2, 4 reduce-scatters and 4 all-gathers, and 2 more that gather
  /// the halves' inputs again instead of keeping them. A block that is computed again as a whole
  /// enters both halves once more and leaves the first. The embedding sums what the vocabulary's
  /// slices looked up, and the head what they contribute to its input's gradient: one each, for
  /// which sequence parallelism has a reduce-scatter, and an all-gather in the other direction.
  /// And the head's ranks tell each other three f32 numbers a token, of their columns of logits.
  void add_tensor_parallel() {
    const int t = plan_.mesh.degree(Axis::kTensor);
    const std::int64_t m = plan_.batch.accumulation;
    const std::int64_t tokens = plan_.batch.micro_batch * plan_.batch.sequence;
    const std::int64_t whole = tokens * config_.model.hidden_size * compute_bytes_;
    const auto activations = [&](Op op, std::int64_t calls) {
      add("tensor-parallel", t, op, Purpose::kActivation, {m * calls, m * calls * whole});
    };
    for (const ChunkPlan& chunk : plan_.chunks) {
      const StageExtent& extent = chunk.stage.extent();
      const std::int64_t blocks = extent.end_block - extent.first_block;
      std::int64_t again = 0;  // blocks
      for (std::int64_t block = extent.first_block; block < extent.end_block; ++block) {
        again += config_.recompute.of_block(block) == RecomputeGranularity::kFull ? 1 : 0;
      }
      const std::int64_t ends = (extent.is_first() ? 1 : 0) + (extent.is_last() ? 1 : 0);
      if (config_.tensor_parallel.sequence_parallel) {
        activations(Op::kReduceScatter, 4 * blocks + again + ends);
        activations(Op::kAllGather, 6 * blocks + 2 * again + ends);
      } else {
        activations(Op::kAllReduce, 4 * blocks + again + ends);
      }
      if (extent.is_last()) {
        add("tensor-parallel", t, Op::kAllGather, Purpose::kActivation,
            {m, m * t * tokens * 3 * 4});
      }
    }
  }

  /// Every micro-batch crosses every border between chunks twice: as activations to the chunk
  /// behind, as their gradient back. With sequence parallelism each of the t ranks sends its own
  /// tokens.
  void add_pipeline() {
    const int stages = plan_.mesh.degree(Axis::kPipeline);
    std::int64_t borders = 0;
    for (const ChunkPlan& chunk : plan_.chunks) {
      const StageExtent& extent = chunk.stage.extent();
      borders += (extent.is_last() ? 0 : 1) + (extent.is_first() ? 0 : 1);
    }
    const std::int64_t tokens =
        plan_.batch.micro_batch * plan_.batch.sequence /
        (config_.tensor_parallel.sequence_parallel ? plan_.mesh.degree(Axis::kTensor) : 1);
    const std::vector<Action>& actions = plan_.actions;
    const auto exchanges = std::count_if(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind == Action::Kind::kExchange;
    });
    add("pipeline", stages, Op::kExchange, Purpose::kActivation,
        {exchanges,
         borders * plan_.batch.accumulation * tokens * config_.model.hidden_size * compute_bytes_});
  }

  /// Rajbhandari et al. 2020, §7, unit by unit.
  void add_data_parallel() {
    const int dp = plan_.mesh.degree(kGradientAxes);
    const int stage = config_.zero.stage;
    const std::int64_t m = plan_.batch.accumulation;
    const std::int64_t wire =
        config_.formats.communication ? size_of(*config_.formats.communication) : gradient_bytes_;
    const auto units = [&](Op op, Purpose purpose, std::int64_t times, const Count& elements,
                           std::int64_t width) {
      add("data-parallel", dp, op, purpose,
          {times * elements.calls, times * elements.bytes * width});
    };
    Count all;  // units, and their elements with padding
    std::int64_t numel = 0;
    for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
      all.calls += 1;
      all.bytes += plan_.shards.padded_numel(unit);
      numel += plan_.shards.numel(unit);
    }
    if (stage == 0) {
      units(Op::kAllReduce, Purpose::kGradient, 1, {all.calls, numel}, wire);
      return;
    }
    units(Op::kReduceScatter, Purpose::kGradient, stage == 1 ? 1 : m, all, wire);
    if (stage < 3) {
      units(Op::kAllGather, Purpose::kParameter, 1, all, compute_bytes_);
    } else {
      units(Op::kAllGather, Purpose::kParameter, m, gathered_by_a_micro_batch(), compute_bytes_);
    }
  }

  /// Stage 3: everything forward and again backward; but looking up needs the embedding only
  /// forward, a tied table on the last stage is needed only backward, where it makes logits, and
  /// the head is still there where backward follows forward at once.
  [[nodiscard]] Count gathered_by_a_micro_batch() const {
    const bool piped = plan_.mesh.degree(Axis::kPipeline) > 1;
    Count count;
    for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
      const UnitDecl& decl = plan_.shards.unit(unit);
      const bool block = decl.name.starts_with("blocks.");
      const bool last_table = piped && decl.params.front().tied_copy;
      const bool forward = !last_table;
      const bool backward = block || last_table || (piped && decl.name == "head") ||
                            (!piped && decl.name == "embedding" && config_.model.tied_embeddings);
      const std::int64_t times = (forward ? 1 : 0) + (backward ? 1 : 0);
      count.calls += times;
      count.bytes += times * plan_.shards.padded_numel(unit);
    }
    return count;
  }

  /// Once a step, of what this rank updates: the gradients of norms, if each rank saw other tokens;
  /// of key/value heads that several ranks hold; of a tied table on two stages.
  void add_replicas() {
    const int t = plan_.mesh.degree(Axis::kTensor);
    const auto heads = static_cast<int>(config_.model.num_key_value_heads);
    const int copies = std::max(1, t / heads);
    std::int64_t norms = 0;
    std::int64_t shared_heads = 0;
    std::int64_t table = 0;
    for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
      const UnitDecl& decl = plan_.shards.unit(unit);
      const Range mine = config_.zero.stage == 0
                             ? Range{0, plan_.shards.numel(unit)}
                             : plan_.shards.slice(unit, plan_.memory.options().slice);
      for (std::size_t index = 0; index < decl.params.size(); ++index) {
        const std::string& name = decl.params[index].name;
        const auto is_about = [&](const char* part) {
          return name.find(part) != std::string::npos;
        };
        const std::int64_t begin = decl.offset_of(static_cast<int>(index));
        std::int64_t elements = decl.params[index].local_shape().numel();
        if (is_about("embedding.token")) {  // without the rows beyond the vocabulary
          const std::int64_t rows = (config_.model.vocab_size + t - 1) / t;
          elements = std::min(rows, config_.model.vocab_size -
                                        plan_.mesh.index(Axis::kTensor, plan_.rank) * rows) *
                     config_.model.hidden_size;
        }
        const std::int64_t held = std::max<std::int64_t>(
            0, std::min(begin + elements, mine.end) - std::max(begin, mine.begin));
        norms += is_about("norm.") ? held : 0;
        shared_heads += is_about(".key.") || is_about(".value.") ? held : 0;
        table += is_about("embedding.token") ? held : 0;
      }
    }
    const auto sum = [&](const char* group, int size, std::int64_t elements) {
      add(group, size, Op::kAllReduce, Purpose::kReplica,
          {elements > 0 ? 1 : 0, elements * gradient_bytes_});
    };
    const bool everywhere = copies == t;
    sum("tensor-parallel", t,
        (config_.tensor_parallel.sequence_parallel ? norms : 0) + (everywhere ? shared_heads : 0));
    sum("shared heads", everywhere ? 1 : copies, shared_heads);
    const bool tied = config_.model.tied_embeddings && plan_.mesh.degree(Axis::kPipeline) > 1;
    sum("tied embedding", tied ? 2 : 1, table);
  }

  void add_norm() {
    const int model = plan_.mesh.degree(Axis::kTensor) * plan_.mesh.degree(Axis::kPipeline);
    const bool sharded = config_.zero.stage > 0;
    add(sharded ? "world" : "model-parallel", sharded ? plan_.mesh.world_size() : model,
        Op::kAllReduce, Purpose::kOptimizer, {1, 8});
  }

  const Config& config_;
  const RunPlan& plan_;
  std::int64_t compute_bytes_;
  std::int64_t gradient_bytes_;
  Traffic traffic_;
};

}  // namespace

Traffic recorded_traffic(const TinyRun& run) {
  Traffic traffic;
  for (const CollectiveLog::Entry& entry : run.traffic) {
    const std::string group = entry.group.substr(0, entry.group.find(" ("));
    Count& count = traffic[{group, entry.op, entry.purpose}];
    count.calls += 1;
    count.bytes += entry.bytes();
  }
  return traffic;
}

Traffic expected_traffic(const Config& config, const RunPlan& plan) {
  return Expectation(config, plan).traffic();
}

}  // namespace dstrain::test
