#include "engine/plan/schedule.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Kind = Action::Kind;
using Direction = Message::Direction;
using What = Message::What;

/// The forwards and backwards of one rank in order.
struct Turns {
  std::vector<Action> actions;
  int warmup = 0;  ///< forwards at the start; from then on forwards and backwards alternate
};

/// Number of forwards that a rank is ahead of its backwards, so that neither waits where the
/// pipeline is full. Interleaved neighbours differ by two: both then hand over activations, or
/// gradients, at the same time, and use them after an action of the other kind. If they received
/// right before use, as the others do, they would wait for each other for ever where nothing is
/// buffered and m > p.
int warmup_of(const Schedule& schedule, int rank) {
  const int below = schedule.pipeline_ranks - 1 - rank;
  const int all = schedule.chunks * schedule.micro_batches;
  if (schedule.order == PipelineOrder::kGpipe || schedule.order == PipelineOrder::kForward) {
    return all;
  }
  return schedule.order == PipelineOrder::kInterleaved
             ? std::min(all, 2 * below + (schedule.chunks - 1) * schedule.pipeline_ranks)
             : std::min(all, below);
}

/// The k-th forward or backward of any rank: p micro-batches through one chunk, the same p through
/// the next chunk (backwards: through the one before), then the next p.
Action turn(const Schedule& schedule, Kind kind, int k) {
  if (schedule.chunks == 1) {
    return {.kind = kind, .chunk = 0, .micro_batch = k};
  }
  if (schedule.order == PipelineOrder::kForward) {
    return {.kind = kind, .chunk = k % schedule.chunks, .micro_batch = k / schedule.chunks};
  }
  const int group = schedule.pipeline_ranks;
  const int round = group * schedule.chunks;
  const int nth_chunk = k % round / group;
  return {.kind = kind,
          .chunk = kind == Kind::kForward ? nth_chunk : schedule.chunks - 1 - nth_chunk,
          .micro_batch = k / round * group + k % group};
}

Turns turns_of(const Schedule& schedule, int rank) {
  if (schedule.order == PipelineOrder::kVertical) {
    const int all = schedule.micro_batches;
    return {.actions = {{.kind = Kind::kForward, .together = all},
                        {.kind = Kind::kBackward, .together = all}},
            .warmup = 1};
  }
  Turns turns{.actions = {}, .warmup = warmup_of(schedule, rank)};
  const int all = schedule.chunks * schedule.micro_batches;
  const int backwards = schedule.order == PipelineOrder::kForward ? 0 : all;
  for (int k = 0; k < backwards + turns.warmup; ++k) {
    if (k < all) {
      turns.actions.push_back(turn(schedule, Kind::kForward, k));
    }
    if (k >= turns.warmup) {
      turns.actions.push_back(turn(schedule, Kind::kBackward, k - turns.warmup));
    }
  }
  return turns;
}

/// The message that brings the input of a forward or backward, or takes its output away; absent at
/// the ends of the model, and where a single rank has all of it.
std::optional<Message> message_of(const Schedule& schedule,
                                  int rank,
                                  const Action& action,
                                  Direction direction) {
  const int p = schedule.pipeline_ranks;
  const bool forward = action.kind == Kind::kForward;
  const bool with_next = forward == (direction == Direction::kSend);  // or with the stage before
  const int end = with_next ? schedule.model_stages() - 1 : 0;
  if (p == 1 || schedule.model_stage(rank, action.chunk) == end) {
    return std::nullopt;
  }
  return Message{.direction = direction,
                 .what = forward ? What::kActivation : What::kGradient,
                 .peer = (rank + (with_next ? 1 : p - 1)) % p,
                 .chunk = action.chunk,
                 .micro_batch = action.micro_batch};
}

/// The turns of a rank with the exchanges between them.
class RankWriter {
 public:
  RankWriter(const Schedule& schedule, int rank)
      : schedule_(schedule), rank_(rank), turns_(turns_of(schedule, rank)) {}

  std::vector<Action> write() {
    exchange({input(0)});
    for (std::size_t i = 0; i < turns_.actions.size(); ++i) {
      if (early() && i == static_cast<std::size_t>(turns_.warmup)) {
        // The first gradient is received before the forward that precedes the first backward, as
        // for all later ones; in an exchange by itself, since it comes after the activation that
        // the previous exchange has brought.
        exchange({input(next_of(Kind::kBackward, i))});
      }
      written_.push_back(turns_.actions[i]);
      const std::size_t next = early() ? next_of(turns_.actions[i].kind, i + 1) : i + 1;
      exchange({output(i), input(next)});
    }
    return std::move(written_);
  }

 private:
  [[nodiscard]] bool early() const { return schedule_.order == PipelineOrder::kInterleaved; }

  [[nodiscard]] std::size_t next_of(Kind kind, std::size_t from) const {
    while (from < turns_.actions.size() && turns_.actions[from].kind != kind) {
      ++from;
    }
    return from;
  }

  [[nodiscard]] std::optional<Message> input(std::size_t turn) const {
    return turn < turns_.actions.size()
               ? message_of(schedule_, rank_, turns_.actions[turn], Direction::kReceive)
               : std::nullopt;
  }
  [[nodiscard]] std::optional<Message> output(std::size_t turn) const {
    return message_of(schedule_, rank_, turns_.actions[turn], Direction::kSend);
  }

  void exchange(std::initializer_list<std::optional<Message>> messages) {
    Action action{.kind = Kind::kExchange, .chunk = 0, .micro_batch = 0};
    for (const auto& message : messages) {
      if (message) {
        action.messages.push_back(*message);
      }
    }
    if (!action.messages.empty()) {
      written_.push_back(std::move(action));
    }
  }

  const Schedule& schedule_;
  int rank_;
  Turns turns_;
  std::vector<Action> written_;
};

}  // namespace

std::string_view name_of(PipelineOrder order) {
  switch (order) {
    case PipelineOrder::kGpipe:
      return "gpipe";
    case PipelineOrder::kOneForwardOneBackward:
      return "1f1b";
    case PipelineOrder::kInterleaved:
      return "interleaved";
    case PipelineOrder::kVertical:
      return "vertical";
    case PipelineOrder::kForward:
      return "forward";
  }
  return "?";
}

std::optional<std::string> why_not(PipelineOrder order,
                                   int pipeline_ranks,
                                   int chunks,
                                   int micro_batches) {
  if (pipeline_ranks < 1 || chunks < 1 || micro_batches < 1) {
    return fmt::format(
        "a pipeline has at least one rank, one chunk of the model on each and one micro-batch a "
        "step, not {}, {} and {}",
        pipeline_ranks, chunks, micro_batches);
  }
  if (order == PipelineOrder::kForward) {
    return std::nullopt;
  }
  if (order == PipelineOrder::kVertical && pipeline_ranks * chunks != 1) {
    return fmt::format(
        "the vertical order takes all micro-batches through a block before the next, which leaves "
        "nothing for other ranks to begin with: it needs the whole model on each rank, not {} "
        "stages",
        pipeline_ranks * chunks);
  }
  if (order != PipelineOrder::kInterleaved && chunks != 1) {
    return fmt::format(
        "{} chunks of the model on each pipeline rank need the interleaved schedule: {} has one",
        chunks, name_of(order));
  }
  if (chunks != 1 && micro_batches % pipeline_ranks != 0) {
    return fmt::format(
        "the interleaved schedule takes as many micro-batches at a time through a chunk as there "
        "are pipeline ranks: {} micro-batches a step are not a multiple of {}",
        micro_batches, pipeline_ranks);
  }
  return std::nullopt;
}

Schedule make_schedule(PipelineOrder order, int pipeline_ranks, int chunks, int micro_batches) {
  const auto objection = why_not(order, pipeline_ranks, chunks, micro_batches);
  check(!objection, "no such pipeline schedule: {}", objection.value_or(""));
  if (order == PipelineOrder::kInterleaved && chunks == 1) {
    order = PipelineOrder::kOneForwardOneBackward;
  }
  Schedule schedule{.order = order,
                    .pipeline_ranks = pipeline_ranks,
                    .chunks = chunks,
                    .micro_batches = micro_batches,
                    .ranks = {}};
  for (int rank = 0; rank < pipeline_ranks; ++rank) {
    schedule.ranks.push_back(RankWriter(schedule, rank).write());
  }
  return schedule;
}

std::vector<Action> one_by_one(const std::vector<Action>& actions) {
  std::vector<Action> single;
  for (const Action& action : actions) {
    if (action.together == 1) {
      single.push_back(action);
    } else if (action.kind == Kind::kForward) {
      for (int k = action.micro_batch; k < action.micro_batch + action.together; ++k) {
        single.push_back({.kind = Kind::kForward, .chunk = action.chunk, .micro_batch = k});
        single.push_back({.kind = Kind::kBackward, .chunk = action.chunk, .micro_batch = k});
      }
    }
  }
  return single;
}

}  // namespace dstrain
