// Schedule: the order in which each rank of a pipeline runs its micro-batches, and what crosses to
// its neighbours when. It is data, the same on every rank; no tensors and no sockets. p pipeline
// ranks hold v chunks of the model each, and chunk c of rank r is model stage c·p + r; m
// micro-batches a step.
//
// What an order costs, where a chunk's forward takes f and its backward b:
//               idle time a rank   idle share of a step   most micro-batches in flight on rank r
//   gpipe       (p-1)·(f+b)        (p-1)/(m+p-1)          m
//   1f1b        (p-1)·(f+b)        (p-1)/(m+p-1)          min(m, p-r)
//   interleaved (p-1)·(f+b)        (p-1)/(v·m+p-1)        min(v·m, 2(p-r-1) + (v-1)·p + 1)
// An interleaved chunk is 1/v of a rank's layers, so its f and b, and what it keeps for a
// micro-batch in flight, are 1/v of the others'. It pays in messages: a micro-batch crosses
// v·p - 1 boundaries each way instead of p - 1.
//   gpipe: Huang et al. 2019, "GPipe", §2.2, here with the backwards in the order of the forwards
// A single rank that holds the whole model may also take its micro-batches block by block:
// "vertical" runs one block for all of them before the next, so that what is fetched for a block is
// fetched once a step, and keeps all m in flight.
//   1f1b: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters
//     using Megatron-LM", §2.2.1 (PipeDream-flush);  interleaved: §2.2.2
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

enum class PipelineOrder : std::uint8_t {
  kGpipe,
  kOneForwardOneBackward,
  kInterleaved,
  kVertical,  ///< one rank: all micro-batches through a block, then through the next
  kForward    ///< for evaluation: each micro-batch through all chunks in turn, and none back
};
/// "gpipe", "1f1b", "interleaved", "vertical", "forward".
std::string_view name_of(PipelineOrder order);

/// One message, as the rank sees it that sends or receives it.
struct Message {
  enum class Direction : std::uint8_t { kSend, kReceive };
  enum class What : std::uint8_t { kActivation, kGradient };
  Direction direction = Direction::kSend;
  What what = What::kActivation;
  int peer = 0;   ///< pipeline rank
  int chunk = 0;  ///< of this rank: the one that made it, or the one that needs it
  int micro_batch = 0;
  friend bool operator==(const Message&, const Message&) = default;
};

struct Action {
  enum class Kind : std::uint8_t { kForward, kBackward, kExchange };
  Kind kind = Kind::kForward;
  int chunk = 0;                    ///< of a forward or backward
  int micro_batch = 0;              ///< of a forward or backward: the first
  int together = 1;                 ///< so many from that one on take each block in turn
  std::vector<Message> messages{};  ///< of an exchange: all of one moment
  friend bool operator==(const Action&, const Action&) = default;
};

/// The actions of every rank. Whoever runs them can rely on this:
/// - All of a rank's messages of one moment are in one exchange. An output is sent before the next
///   of its kind is made, and an input is used before the next of its kind is received: one buffer
///   for each of activation in, activation out, gradient in and gradient out is enough.
/// - Gpipe, 1f1b and forward exchange what the last action made for what the next one needs. An
/// interleaved
///   rank exchanges activations after each forward, its output for the next forward's input, and
///   gradients likewise after each backward. So where forwards and backwards alternate, an exchange
///   may run beside the action of the other kind that follows it.
/// - A single rank (p = 1) has no exchanges, also not between its chunks: what one hands over, the
///   next action of the same kind uses.
struct Schedule {
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;
  int pipeline_ranks = 1;  ///< p
  int chunks = 1;          ///< v, of each rank
  int micro_batches = 1;   ///< m, of a step
  std::vector<std::vector<Action>> ranks;

  [[nodiscard]] int model_stages() const { return pipeline_ranks * chunks; }
  [[nodiscard]] int model_stage(int rank, int chunk) const { return chunk * pipeline_ranks + rank; }
};

/// Returns why there is no such schedule, in a sentence for the user; nothing if there is one.
std::optional<std::string> why_not(PipelineOrder order,
                                   int pipeline_ranks,
                                   int chunks,
                                   int micro_batches);
/// why_not(…) must have no objection. Interleaved with one chunk is 1f1b.
Schedule make_schedule(PipelineOrder order, int pipeline_ranks, int chunks, int micro_batches);

/// Throws InternalError, which names the rank and the action, unless
/// - every micro-batch goes forward once, and then back once unless the order is forward, through
///   every chunk of every rank, each time with an input that the neighbouring model stage has sent
///   before;
/// - between two ranks the i-th send matches the i-th receive, and what one exchange sends to a
///   peer is received by one exchange of the peer, together with nothing else from this rank;
/// - no rank waits for ever even over links that buffer nothing: an exchange ends only when the
///   peers of all its messages have come to the exchanges that hold the matching ones.
void validate(const Schedule& schedule);

/// The same work with each micro-batch by itself: those that go together go forward and back one
/// after the other.
std::vector<Action> one_by_one(const std::vector<Action>& actions);

/// The slots in which a rank keeps the activations of the micro-batches in flight, from the start
/// of a micro-batch's forward through a chunk to the end of its backward. Slots of a chunk are
/// numbered from 0; there are as many as micro-batches are ever in flight in it. In gpipe and 1f1b
/// the slot is free already when the forward's input is received; an interleaved rank receives it
/// earlier.
class ActivationSlots {
 public:
  /// The schedule must be valid.
  ActivationSlots(const Schedule& schedule, int rank);

  [[nodiscard]] int num_slots(int chunk) const;
  [[nodiscard]] int slot_of(int chunk, int micro_batch) const;

 private:
  int micro_batches_;
  std::vector<int> num_slots_;  // [chunk]
  std::vector<int> slots_;      // [chunk][micro-batch]
};

/// The idle time of all ranks together, relative to their time in a step, if a forward through any
/// chunk and a backward have these costs (in any unit) and messages none. Exchanges wait as in
/// validate(), so this is what a transport without buffers reaches. The schedule must be valid.
double idle_share(const Schedule& schedule, double forward_cost, double backward_cost);

/// "F3": forward of micro-batch 3; "F0-3": of four together; "B3.1": its backward through chunk 1,
/// if ranks have several; "send activation of F3 to rank 1, receive …": an exchange.
std::string to_text(const Schedule& schedule, const Action& action);

}  // namespace dstrain
