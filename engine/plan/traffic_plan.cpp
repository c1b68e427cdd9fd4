#include "engine/plan/traffic_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "engine/comm/codec.h"

namespace dstrain {
namespace {

constexpr std::int64_t kLossNumbers = 3;  // of each token, that the vocabulary's slices combine

/// Writes the parts of a step in the order of the engine: Pipeline, TransformerStage and
/// DataParallel issue what is listed here.
class StepTraffic {
 public:
  explicit StepTraffic(const TrafficNeeds& needs)
      : needs_(needs),
        options_(needs.memory.options()),
        tensor_ranks_(size_of_group(GroupId::kTensor)),
        splits_tokens_(needs.splits_tokens && tensor_ranks_ > 1),
        slices_(group_of_slices(options_.placement)) {}

  /// One pass of a micro-batch, or several together, through a chunk. `started` says whether its
  /// first gathers are already on their way and, on return, whether those of the next pass are.
  std::vector<TrafficPlan::Repeated> pass(
      Pass pass, const ChunkTraffic& chunk, int together, bool last, bool& started) {
    const bool forward = pass == Pass::kForward;
    phase_ = forward ? TrafficPhase::kForward : TrafficPhase::kBackward;
    const UnitWalk& walk = forward ? chunk.forward : chunk.backward;
    const bool goes_on = !forward && chunk.backward_gathers == ChunkTraffic::kGoesOn;
    const GatherPlan* gathers = nullptr;
    std::int64_t visit = 0;
    if (!needs_.gathers.empty()) {
      const int index = forward || goes_on ? chunk.forward_gathers : chunk.backward_gathers;
      gathers = &needs_.gathers.at(static_cast<std::size_t>(index));
      if (goes_on) {
        visit = static_cast<std::int64_t>(chunk.forward.size());
      } else {
        if (!started) gather(*gathers, -1);
        started = false;
      }
    }
    for (std::size_t i = 0; i < walk.size(); ++i, ++visit) {
      if (gathers != nullptr) {
        gather(*gathers, visit);
        if (visit + 1 == static_cast<std::int64_t>(gathers->walk().size()) && !last) {
          gather(*gathers, -1);
          started = true;
        }
      }
      unit_ = walk[i].unit;
      for (int k = 0; k < together; ++k) {
        cross(forward, chunk, i);
      }
      if (!forward) {
        reduce_finished(walk, i, last);
      }
    }
    return std::exchange(part_, {});
  }

  std::vector<TrafficPlan::Repeated> exchange(const Action& action) {
    phase_ = TrafficPhase::kEdge;
    unit_ = Transfer::kNoUnit;
    const auto sent = std::count_if(
        action.messages.begin(), action.messages.end(),
        [](const Message& message) { return message.direction == Message::Direction::kSend; });
    const std::int64_t tokens = needs_.tokens / (splits_tokens_ ? tensor_ranks_ : 1);
    add(GroupId::kPipeline, Op::kExchange, sent * tokens * needs_.width, options_.compute_dtype,
        Purpose::kActivation);
    return std::exchange(part_, {});
  }

  std::vector<TrafficPlan::Repeated> update() {
    phase_ = TrafficPhase::kUpdate;
    unit_ = Transfer::kNoUnit;
    if (needs_.counts_targets) {
      add(GroupId::kWorld, Op::kAllReduce, 1, DType::kF64, Purpose::kControl);
    }
    const bool is_compressed = needs_.travel == GradientTravel::kCoded && options_.compression;
    if (is_compressed) exchange_compressed(*options_.compression);
    sum_replicas();
    const bool is_summed = needs_.travel == GradientTravel::kSummed || is_compressed;
    add(is_summed ? needs_.norm_group : GroupId::kWorld, Op::kAllReduce, 1, DType::kF64,
        Purpose::kOptimizer);
    if (needs_.expert_norm_group) {
      add(*needs_.expert_norm_group, Op::kAllReduce, 1, DType::kF64, Purpose::kOptimizer);
    }
    if (needs_.travel == GradientTravel::kCoded && !is_compressed) {
      const std::int64_t bytes = options_.signs.value().bytes();
      add(GroupId::kData, Op::kAllToAll, bytes, DType::kU8, Purpose::kGradient);
      add(GroupId::kData, Op::kAllGather, bytes, DType::kU8, Purpose::kGradient);
    }
    if (options_.placement.states.is_cut()) {
      update_slices();
    }
    unit_ = Transfer::kNoUnit;
    if (needs_.scaled_tensors > 0) {
      add(GroupId::kWorld, Op::kAllReduce, needs_.scaled_tensors, DType::kF32, Purpose::kControl);
    }
    phase_ = TrafficPhase::kAgreement;
    if (needs_.routing_doubles > 0) {
      add(GroupId::kWorld, Op::kAllReduce, needs_.routing_doubles, DType::kF64, Purpose::kMetric);
    }
    add(GroupId::kWorld, Op::kAllGather, needs_.report_doubles * size_of_group(GroupId::kWorld),
        DType::kF64, Purpose::kMetric);
    return std::exchange(part_, {});
  }

  /// The units that have been gathered in the step so far, where that makes a difference.
  [[nodiscard]] const std::set<int>& gathered_before() const { return gathered_before_; }
  void set_gathered_before(std::set<int> units) { gathered_before_ = std::move(units); }

 private:
  [[nodiscard]] std::int64_t size_of_group(GroupId id) const {
    const GroupPlan* const group = find_group(needs_.groups, id);
    return group == nullptr ? 0 : group->size();
  }

  [[nodiscard]] GroupId slices(int unit) const {
    return group_of_slices(options_.placement, needs_.shards.unit(unit).replicated);
  }

  /// Adds an operation; groups of one put nothing on the wire.
  void add(GroupId group,
           Op op,
           std::int64_t elements,
           DType dtype,
           Purpose purpose,
           std::int64_t times = 1) {
    if (times > 0 && size_of_group(group) > 1) {
      part_.push_back({.transfer = {.phase = phase_,
                                    .unit = unit_,
                                    .group = group,
                                    .op = op,
                                    .elements = elements,
                                    .dtype = dtype,
                                    .purpose = purpose},
                       .times = times});
    }
  }

  // Tensor parallelism (engine/parallel/tensor_parallel.h).
  void activations(Op op) {
    add(GroupId::kTensor, op, needs_.tokens * needs_.width, options_.compute_dtype,
        Purpose::kActivation);
  }
  /// A split layer's input is made whole.
  void enter() {
    if (splits_tokens_) activations(Op::kAllGather);
  }
  /// The parts of its result are summed, or those of its input's gradient.
  void sum() { activations(splits_tokens_ ? Op::kReduceScatter : Op::kAllReduce); }

  /// What visit `i` of a pass exchanges between the ranks that share its unit.
  void cross(bool forward, const ChunkTraffic& chunk, std::size_t i) {
    const std::size_t blocks = chunk.blocks.size();
    const std::size_t before = (forward ? chunk.is_first : chunk.is_last) ? 1 : 0;
    const bool is_block = i >= before && i < before + blocks;
    if (is_block && forward) {
      cross_block_forward(chunk.blocks[i - before]);
    } else if (is_block) {
      cross_block_backward(chunk.blocks[blocks - 1 - (i - before)]);
    } else if (const bool is_embedding = forward ? i < before : i >= before; is_embedding) {
      if (forward) {
        sum();
      } else if (needs_.shards.unit(chunk.backward[i].unit).trained) {
        enter();
      }
    } else if (!forward) {
      cross_head_backward();
    }
  }

  /// Attention and feed-forward: each is entered and left.
  void cross_block_forward(const BlockTraffic& block) {
    enter();
    sum_norms(block);
    attend(block.attend);
    sum_lengths(block.attention_lengths);
    if (!block.parallel) sum();
    if (!block.own_tokens) enter();
    route(block.experts.forward);
    sum_lengths(block.feed_forward_lengths);
    if (!block.own_tokens) sum();
  }
  void cross_block_backward(const BlockTraffic& block) {
    if (block.gathers_input) activations(Op::kAllGather);
    if (block.computes_again) {
      enter();
      sum_norms(block);
      attend(block.attend);
      sum_lengths(block.attention_lengths);
      if (!block.parallel) sum();
      if (!block.own_tokens) enter();
      // Where results are normed, that of the feed-forward is computed again, too.
      route(block.norms_results ? block.experts.forward : block.experts.expand);
      if (block.norms_results) sum_lengths(block.feed_forward_lengths);
      if (block.norms_results && !block.own_tokens) sum();
    }
    for (const bool is_attention : {false, true}) {
      if (!is_attention && block.own_tokens) {
        route(block.experts.backward);
        continue;
      }
      if (!block.parallel || !is_attention) enter();  // the gradient of the output
      enter();  // the input once more, which is not kept whole
      if (is_attention) {
        attend(block.attend_backward);
        sum_norms(block);
      } else {
        route(block.experts.backward);
      }
      sum();
    }
  }
  void attend(const std::vector<ContextTransfer>& transfers) {
    for (const ContextTransfer& transfer : transfers) {
      add(transfer.group, transfer.op, transfer.elements, options_.compute_dtype,
          Purpose::kActivation);
    }
  }
  void route(const std::vector<ExpertTransfer>& transfers) {
    for (const ExpertTransfer& transfer : transfers) {
      const std::size_t before = part_.size();
      add(transfer.group, transfer.op, transfer.elements, transfer.dtype, Purpose::kExperts);
      if (part_.size() > before) part_.back().transfer.is_beside = transfer.is_beside;
    }
  }
  /// Sums squares, or products in backward, of a token's queries and of its keys.
  void sum_norms(const BlockTraffic& block) {
    if (block.sums_norms) {
      add(GroupId::kTensor, Op::kAllReduce, needs_.tokens * 2, DType::kF32, Purpose::kActivation);
    }
  }
  void sum_lengths(std::int64_t rows) {
    add(GroupId::kTensor, Op::kAllReduce, rows, DType::kF32, Purpose::kActivation,
        rows > 0 ? 1 : 0);
  }
  /// Logits are made in chunks of tokens; each rank's columns of them add to the losses.
  void cross_head_backward() {
    if (needs_.weighed_numbers > 0) {
      compute_losses();
      for (const GroupId group : {GroupId::kContextRing, GroupId::kContextHeads}) {
        add(group, Op::kAllReduce, needs_.weighed_numbers, DType::kF32, Purpose::kMetric);
      }
    }
    compute_losses();
    sum();
  }
  void compute_losses() {
    enter();
    const std::vector<BufferDecl>& buffers = needs_.blueprint.buffers();
    const auto stats = std::find_if(buffers.begin(), buffers.end(), [](const BufferDecl& buffer) {
      return buffer.name == "vocabulary_stats";
    });
    if (stats != buffers.end()) {
      const std::int64_t chunk = stats->shape[1];
      const auto exchange = [&](std::int64_t tokens, std::int64_t times) {
        add(GroupId::kTensor, Op::kAllGather, tensor_ranks_ * tokens * kLossNumbers, DType::kF32,
            Purpose::kActivation, times);
      };
      exchange(chunk, needs_.tokens / chunk);
      exchange(needs_.tokens % chunk, needs_.tokens % chunk > 0 ? 1 : 0);
    }
  }

  // Data parallelism (engine/parallel/zero0.cpp to zero3.cpp).
  void gather(const GatherPlan& gathers, std::int64_t visit) {
    for (const int index : gathers.starting(visit)) {
      const int unit = gathers.gathers()[static_cast<std::size_t>(index)].unit;
      const bool again =
          options_.placement.secondary.is_cut() && !gathered_before_.insert(unit).second;
      const std::int64_t coded = needs_.memory.coded_parameters(needs_.shards, unit);
      if (again || coded == 0) {
        make_whole(unit, again ? GroupId::kDataInside : slices(unit));
      } else {
        unit_ = unit;
        add(slices(unit), Op::kAllGather, coded, DType::kU8, Purpose::kParameter);
      }
    }
  }
  void make_whole(int unit, GroupId group) {
    unit_ = unit;
    add(group, Op::kAllGather, needs_.shards.padded_numel(unit),
        needs_.memory.dtype(RegionKind::kParameters), Purpose::kParameter);
  }

  /// Gradients that no later visit adds to.
  void reduce_finished(const UnitWalk& walk, std::size_t visit, bool last) {
    if (needs_.travel != GradientTravel::kSummed) return;
    if (!options_.placement.gradients.is_cut() && !last) {
      return;
    }
    for (const int unit : walk[visit].writes) {
      const bool goes_on = std::any_of(walk.begin() + static_cast<std::ptrdiff_t>(visit) + 1,
                                       walk.end(), [&](const UnitVisit& later) {
                                         return std::find(later.writes.begin(), later.writes.end(),
                                                          unit) != later.writes.end();
                                       });
      if (!goes_on) {
        unit_ = unit;
        const auto codec = make_codec(options_.gradient_dtype, options_.wire_dtype);
        if (const std::int64_t coded = needs_.memory.coded_gradients(needs_.shards, unit);
            coded > 0) {
          exchange_coded(coded);
        } else {
          const bool whole = !options_.placement.states.is_cut();
          const std::int64_t numbers =
              whole ? needs_.shards.numel(unit) : needs_.shards.padded_numel(unit);
          add(slices(unit), whole ? Op::kAllReduce : Op::kReduceScatter,
              codec->wire_elements(numbers), codec->wire_dtype(), Purpose::kGradient);
        }
        if (last && needs_.shards.num_copies(unit) > 1) {
          add(GroupId::kDataAcross, Op::kAllReduce, needs_.shards.slice_numel(unit),
              codec->wire_dtype(), Purpose::kGradient);
        }
      }
    }
  }

  /// Where neighbours work together, first they do, then those across (coded_gradients.h).
  void exchange_coded(std::int64_t bytes) {
    const std::int64_t across =
        needs_.shards.has_copies() ? 1 : size_of_group(GroupId::kDataAcross);
    add(across > 1 ? GroupId::kDataInside : slices_, Op::kAllToAll, bytes, DType::kU8,
        Purpose::kGradient);
    if (across > 1) {
      add(GroupId::kDataAcross, Op::kAllToAll, bytes / size_of_group(GroupId::kDataInside),
          DType::kU8, Purpose::kGradient);
    }
  }

  /// engine/parallel/compressed_gradients.cpp
  void exchange_compressed(const CompressionLayout& layout) {
    add(GroupId::kWorld, Op::kAllReduce, 1, DType::kF64, Purpose::kOptimizer);
    if (layout.message_bytes() > 0) {
      add(GroupId::kData, Op::kAllGather, layout.ranks() * layout.message_bytes(), DType::kU8,
          Purpose::kGradient);
    }
    for (const std::int64_t numbers : {layout.sums(), layout.factors()}) {
      if (numbers > 0) {
        add(GroupId::kData, Op::kAllReduce, numbers, DType::kF32, Purpose::kGradient);
      }
    }
  }

  // The end of a step (engine/parallel/owned_update.cpp).
  void sum_replicas() {
    std::vector<std::pair<GroupId, std::int64_t>> sums;
    const auto count = [&](GroupId group, std::int64_t elements) {
      const auto found = std::find_if(sums.begin(), sums.end(),
                                      [&](const auto& sum) { return sum.first == group; });
      if (found != sums.end()) {
        found->second += elements;
      } else {
        sums.emplace_back(group, elements);
      }
    };
    for (int unit = 0; unit < needs_.shards.num_units(); ++unit) {
      const Range owned = needs_.memory.updated(unit);
      const Range held{owned.begin,
                       std::max(owned.begin, std::min(owned.end, needs_.shards.numel(unit)))};
      for (const PlacedPiece& placed : needs_.shards.pieces(unit, held)) {
        const ParamDecl& param =
            needs_.shards.unit(unit).params[static_cast<std::size_t>(placed.param)];
        const std::int64_t elements = placed.piece.flat.size();
        if (param.share.partial_gradient) {
          const bool everywhere = param.share.copies == tensor_ranks_;
          count(everywhere ? GroupId::kTensor : GroupId::kSharedHeads, elements);
        }
        if (param.tied_across_stages) {
          count(GroupId::kTied, elements);
        }
      }
    }
    for (const auto& [group, elements] : sums) {
      add(group, Op::kAllReduce, elements, options_.gradient_dtype, Purpose::kReplica);
    }
  }

  void update_slices() {
    if (needs_.optimizer.reduced_doubles > 0) {
      add(slices_, Op::kAllReduce, needs_.optimizer.reduced_doubles, DType::kF64,
          Purpose::kOptimizer);
    }
    for (const int unit : needs_.optimizer.gathered_units) {
      unit_ = unit;
      add(slices(unit), Op::kAllGather, needs_.shards.padded_numel(unit),
          needs_.optimizer.gathered_dtype, Purpose::kOptimizer);
    }
    for (int unit = 0; unit < needs_.shards.num_units(); ++unit) {
      const std::vector<bool>& whole = options_.always_whole;
      const bool is_cut = options_.placement.parameters.is_cut() &&
                          (whole.empty() || !whole.at(static_cast<std::size_t>(unit)));
      if (!is_cut && needs_.shards.unit(unit).trained) {
        make_whole(unit, slices(unit));
      }
    }
  }

  const TrafficNeeds& needs_;
  const MemoryOptions& options_;
  const std::int64_t tensor_ranks_;
  const bool splits_tokens_;
  const GroupId slices_;
  std::set<int> gathered_before_;  // units of which a second copy is up to date
  std::vector<TrafficPlan::Repeated> part_;
  TrafficPhase phase_ = TrafficPhase::kForward;
  int unit_ = Transfer::kNoUnit;
};

}  // namespace

TrafficPlan::TrafficPlan(const TrafficNeeds& needs) {
  StepTraffic step(needs);
  const auto append = [&](std::vector<Repeated> part) {
    parts_.push_back(std::move(part));
    return parts_.size() - 1;
  };
  // A pass issues the same operations as another one of the chunk that begins alike.
  struct Written {
    std::size_t part;
    bool next_started;
    std::set<int> gathered;
  };
  std::map<std::tuple<int, Action::Kind, bool, bool, std::set<int>>, Written> passes;
  std::map<std::ptrdiff_t, std::size_t> exchanges;  // by the messages that they send
  bool started = false;
  for (const Action& action : needs.actions) {
    if (action.kind == Action::Kind::kExchange) {
      const auto sent = std::count_if(
          action.messages.begin(), action.messages.end(),
          [](const Message& message) { return message.direction == Message::Direction::kSend; });
      auto found = exchanges.find(sent);
      if (found == exchanges.end()) {
        found = exchanges.emplace(sent, append(step.exchange(action))).first;
      }
      order_.push_back(found->second);
      continue;
    }
    const bool last = action.micro_batch + action.together == needs.micro_batches;
    const std::tuple key{action.chunk, action.kind, last, started, step.gathered_before()};
    auto found = passes.find(key);
    if (found == passes.end()) {
      const Pass pass = action.kind == Action::Kind::kForward ? Pass::kForward : Pass::kBackward;
      bool next_started = started;
      const std::size_t part =
          append(step.pass(pass, needs.chunks.at(static_cast<std::size_t>(action.chunk)),
                           action.together, last, next_started));
      found = passes.emplace(key, Written{part, next_started, step.gathered_before()}).first;
    }
    order_.push_back(found->second.part);
    started = found->second.next_started;
    step.set_gathered_before(found->second.gathered);
  }
  order_.push_back(append(step.update()));
}

std::vector<Transfer> TrafficPlan::transfers() const {
  std::vector<Transfer> all;
  for (const std::size_t part : order_) {
    for (const Repeated& entry : parts_[part]) {
      all.insert(all.end(), static_cast<std::size_t>(entry.times), entry.transfer);
    }
  }
  return all;
}

}  // namespace dstrain
