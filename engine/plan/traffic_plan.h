// TrafficPlan: every collective that a training step issues on one rank, in the order in which its
// host issues them, before anything runs. Pure arithmetic over the rest of the plan. Tests compare
// it with what ran, entry by entry; prices add it up.
//
// A step repeats itself, micro-batch after micro-batch, so the list is kept as the parts that
// differ and the order in which they follow each other.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/comm/collective.h"
#include "engine/plan/gather_plan.h"
#include "engine/plan/gradient_travel.h"
#include "engine/plan/group_plan.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/schedule.h"
#include "engine/plan/shard_map.h"

namespace dstrain {

enum class TrafficPhase : std::uint8_t {
  kForward,
  kBackward,
  kEdge,      ///< between pipeline stages
  kUpdate,    ///< once a step: norm, optimizer, parameters made whole
  kAgreement  ///< what ranks tell each other about the step
};

struct Transfer {
  TrafficPhase phase = TrafficPhase::kForward;
  int unit = kNoUnit;  ///< of this rank's, that it is about
  GroupId group = GroupId::kWorld;
  Op op = Op::kAllReduce;
  /// The elements of the whole buffer, as CollectiveLog::Entry counts them.
  std::int64_t elements = 0;
  DType dtype = DType::kF32;  ///< on the wire
  Purpose purpose = Purpose::kActivation;
  bool is_beside = false;  ///< of what ExpertTransfer says: others compute meanwhile

  static constexpr int kNoUnit = -1;
  [[nodiscard]] std::int64_t bytes() const { return elements * size_of(dtype); }
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// What attention exchanges with the ranks that have other tokens of the same sequences, in the
/// compute dtype.
struct ContextTransfer {
  GroupId group = GroupId::kContextRing;
  Op op = Op::kExchange;
  std::int64_t elements = 0;
};

/// One transfer of a block's experts: an all-to-all between ranks that hold other experts, or a sum
/// of counts between ranks that have other tokens of the same sequences. Rows go where the router
/// says: a single rank may send others than are planned for those that come back; all ranks
/// together send as many, or fewer where experts drop some.
struct ExpertTransfer {
  std::int64_t elements = 0;
  DType dtype = DType::kF32;
  GroupId group = GroupId::kExperts;
  Op op = Op::kAllToAll;
  bool is_beside = false;  ///< something else is computed meanwhile
};
struct ExpertTraffic {
  std::vector<ExpertTransfer> forward{};
  std::vector<ExpertTransfer> expand{};  ///< of a forward that is computed again without its result
  std::vector<ExpertTransfer> backward{};
};

/// The traffic of a block beyond that of every block.
struct BlockTraffic {
  bool gathers_input = false;   ///< in backward, of which each rank keeps a part
  bool computes_again = false;  ///< all of it, in backward
  bool sums_norms = false;      ///< of queries and keys, whose heads are normalised together
  /// Rows of weights of which each rank has columns, and whose lengths are summed for their
  /// magnitudes.
  std::int64_t attention_lengths = 0;
  std::int64_t feed_forward_lengths = 0;
  bool parallel = false;       ///< its halves stand side by side, and their sum leaves both
  bool norms_results = false;  ///< of its halves, so that backward needs both again
  bool own_tokens = false;     ///< tensor-parallel ranks each have all of its feed-forward
  std::vector<ContextTransfer> attend{};  ///< around and within the softmax
  std::vector<ContextTransfer> attend_backward{};
  ExpertTraffic experts{};
};

/// One chunk of the model on this rank.
struct ChunkTraffic {
  bool is_first = true;  ///< of the model: it looks up embeddings
  bool is_last = true;   ///< likewise: it makes logits
  UnitWalk forward;
  UnitWalk backward;
  std::vector<BlockTraffic> blocks;
  /// Indices into `gathers`; the backward one is kGoesOn where backward continues forward's walk.
  int forward_gathers = 0;
  int backward_gathers = 0;
  static constexpr int kGoesOn = -1;
};

/// The traffic of an optimizer among the data-parallel ranks, where each updates a slice.
struct OptimizerTraffic {
  std::int64_t reduced_doubles = 0;      ///< summed once an update
  std::vector<int> gathered_units = {};  ///< whose update is gathered, before any parameters are
  DType gathered_dtype = DType::kF32;
};

struct TrafficNeeds {
  const std::vector<GroupPlan>& groups;
  GroupId norm_group;
  std::optional<GroupId> expert_norm_group;  ///< of experts that have groups of their own
  GradientTravel travel;
  const Blueprint& blueprint;
  const ShardMap& shards;
  const MemoryPlan& memory;
  const std::vector<Action>& actions;
  const std::vector<GatherPlan>& gathers;  ///< where parameters are cut: one a walk
  const std::vector<ChunkTraffic>& chunks;
  std::int64_t tokens;         ///< of a micro-batch, on this rank
  std::int64_t width;          ///< numbers a token, between blocks
  std::int64_t micro_batches;  ///< of a step
  bool splits_tokens;          ///< sequence parallelism
  OptimizerTraffic optimizer;
  std::int64_t scaled_tensors;   ///< of the whole model, in 8 bits
  std::int64_t routing_doubles;  ///< summed over all ranks, of what experts did
  std::int64_t report_doubles;   ///< that every rank tells all others of a step
  bool counts_targets;           ///< which some do not: all ranks add up how many do
  /// The losses, and values, of a micro-batch's whole sequences, where targets weigh by all of
  /// them; 0: where they do not.
  std::int64_t weighed_numbers = 0;
};

class TrafficPlan {
 public:
  /// A transfer that is issued several times in a row.
  struct Repeated {
    Transfer transfer;
    std::int64_t times = 1;
  };

  TrafficPlan() = default;
  explicit TrafficPlan(const TrafficNeeds& needs);

  /// The transfers of the whole step, in order.
  [[nodiscard]] std::vector<Transfer> transfers() const;
  /// Calls visit(transfer, how many times a step issues it), without going through every
  /// micro-batch.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    std::vector<std::int64_t> times(parts_.size());
    for (const std::size_t part : order_) {
      times[part] += 1;
    }
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      for (const Repeated& entry : parts_[part]) {
        visit(entry.transfer, entry.times * times[part]);
      }
    }
  }

 private:
  std::vector<std::vector<Repeated>> parts_;
  std::vector<std::size_t> order_;  // of parts_
};

}  // namespace dstrain
