// Proves that a schedule can be run: checks each rank by itself, then the messages between ranks,
// then all ranks together for deadlock.
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/plan/schedule.h"
#include "engine/plan/schedule_play.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Kind = Action::Kind;
using Direction = Message::Direction;
using What = Message::What;

std::string place(const Schedule& schedule, std::size_t rank, std::size_t action) {
  return fmt::format("rank {}, action {} ({})", rank, action,
                     to_text(schedule, schedule.ranks[rank][action]));
}

/// A micro-batch in a chunk, as one number; or nothing.
using Turn = std::optional<std::size_t>;

/// Activations or gradients at the edge of a rank: at most one has come and is still to be used,
/// and at most one is ready and still to be sent.
struct Edge {
  Turn in;
  Turn out;
};

/// Checks one rank by itself: it computes with what it has received, and sends what it has
/// computed.
class RankWalk {
 public:
  RankWalk(const Schedule& schedule, std::size_t rank)
      : schedule_(schedule),
        rank_(rank),
        forward_done_(static_cast<std::size_t>(schedule.chunks * schedule.micro_batches)),
        backward_done_(forward_done_) {}

  void walk() {
    const auto& actions = schedule_.ranks[rank_];
    for (at_ = 0; at_ < actions.size(); ++at_) {
      const Action& action = actions[at_];
      if (action.kind == Kind::kExchange) {
        require(!action.messages.empty(), "has no messages");
        for (const Message& message : action.messages) {
          pass_on(message);
        }
      } else {
        require(action.messages.empty(), "has messages, but is not an exchange");
        require(action.together == 1 || schedule_.model_stages() == 1,
                "takes micro-batches together that other stages wait for one by one");
        for (int k = 0; k < action.together; ++k) {
          compute(action, action.micro_batch + k);
        }
      }
    }
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      for (int micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch) {
        check((trains() ? backward_done_ : forward_done_)[index(chunk, micro_batch)],
              "pipeline schedule: rank {} never takes micro-batch {} {} through chunk {}", rank_,
              micro_batch, forward_done_[index(chunk, micro_batch)] ? "back" : "forward", chunk);
      }
    }
    check(!activations_.out && !gradients_.out && !activations_.in && !gradients_.in,
          "pipeline schedule: rank {} ends with a message that it has not {}", rank_,
          activations_.out || gradients_.out ? "sent" : "used");
  }

 private:
  void require(bool holds, const char* otherwise) const {
    if (!holds) {
      check(false, "pipeline schedule: {} {}", place(schedule_, rank_, at_), otherwise);
    }
  }

  [[nodiscard]] bool trains() const { return schedule_.order != PipelineOrder::kForward; }
  [[nodiscard]] std::size_t index(int chunk, int micro_batch) const {
    return static_cast<std::size_t>(chunk * schedule_.micro_batches + micro_batch);
  }
  /// Whether this is the model's last stage (`at_head`) or its first.
  [[nodiscard]] bool is_end(bool at_head, int chunk) const {
    const int end = at_head ? schedule_.model_stages() - 1 : 0;
    return schedule_.model_stage(static_cast<int>(rank_), chunk) == end;
  }
  void require_in_range(int chunk, int micro_batch) const {
    require(chunk >= 0 && chunk < schedule_.chunks && micro_batch >= 0 &&
                micro_batch < schedule_.micro_batches,
            "names a chunk or micro-batch that there is not");
  }

  void compute(const Action& action, int micro_batch) {
    require_in_range(action.chunk, micro_batch);
    const bool forward = action.kind == Kind::kForward;
    const std::size_t turn = index(action.chunk, micro_batch);
    if (forward) {
      require(!forward_done_[turn], "has been done before");
    } else {
      require(trains(), "goes back where all only goes forward");
      require(forward_done_[turn], "comes before its forward");
      require(!backward_done_[turn], "has been done before");
    }
    Edge& edge = forward ? activations_ : gradients_;
    if (!is_end(!forward, action.chunk)) {
      require(edge.in == turn, "computes with an input that has not come, or not last");
      edge.in.reset();
    }
    if (!is_end(forward, action.chunk)) {
      hand_over(edge, action.chunk, micro_batch, forward);
    }
    (forward ? forward_done_ : backward_done_)[turn] = true;
  }

  /// Hands the result to the neighbour; a single rank is its own neighbour, and gets it without a
  /// message.
  void hand_over(Edge& edge, int chunk, int micro_batch, bool forward) const {
    const bool alone = schedule_.pipeline_ranks == 1;
    Turn& buffer = alone ? edge.in : edge.out;
    require(!buffer, "overwrites an output that is still to be sent or used");
    buffer = index(alone ? chunk + (forward ? 1 : -1) : chunk, micro_batch);
  }

  void pass_on(const Message& message) {
    require_in_range(message.chunk, message.micro_batch);
    const int p = schedule_.pipeline_ranks;
    const bool sends = message.direction == Direction::kSend;
    const bool activation = message.what == What::kActivation;
    const bool with_next = sends == activation;
    const int peer = (static_cast<int>(rank_) + (with_next ? 1 : p - 1)) % p;
    require(p > 1 && !is_end(with_next, message.chunk), "crosses no boundary between ranks");
    require(message.peer == peer, "is with a rank that does not hold the neighbouring stage");
    const std::size_t turn = index(message.chunk, message.micro_batch);
    Edge& edge = activation ? activations_ : gradients_;
    if (sends) {
      require(edge.out == turn, "sends what was not the last to be computed");
      edge.out.reset();
    } else {
      require(!edge.in, "receives over an input that is still to be used");
      edge.in = turn;
    }
  }

  const Schedule& schedule_;
  std::size_t rank_;
  std::size_t at_ = 0;
  std::vector<bool> forward_done_;
  std::vector<bool> backward_done_;
  Edge activations_;
  Edge gradients_;
};

const Message& message_at(const Schedule& schedule, const MessagePlace& at) {
  return schedule.ranks[at.rank][at.action].messages[at.message];
}

/// The model stage before the boundary that a message crosses.
int stage_before(const Schedule& schedule, const MessagePlace& at) {
  const Message& message = message_at(schedule, at);
  const int stage = schedule.model_stage(static_cast<int>(at.rank), message.chunk);
  const bool sends = message.direction == Direction::kSend;
  return sends == (message.what == What::kActivation) ? stage : stage - 1;
}

bool meet(const Schedule& schedule, const MessagePlace& a, const MessagePlace& b) {
  const Message& one = message_at(schedule, a);
  const Message& other = message_at(schedule, b);
  return one.what == other.what && one.micro_batch == other.micro_batch &&
         stage_before(schedule, a) == stage_before(schedule, b);
}

void check_pairs(const Schedule& schedule) {
  using Exchange = std::tuple<Direction, std::size_t, std::size_t, std::size_t>;
  std::map<Exchange, std::size_t> partner;  // by direction, rank, action, other rank
  const auto check_partner = [&](Direction direction, const MessagePlace& at,
                                 const MessagePlace& other) {
    const auto known =
        partner.insert({{direction, at.rank, at.action, other.rank}, other.action}).first;
    if (known->second != other.action) {
      check(false, "pipeline schedule: {}: this meets two exchanges of rank {}, actions {} and {}",
            place(schedule, at.rank, at.action), other.rank, known->second, other.action);
    }
  };
  for (const auto& [send, receive] : pair_messages(schedule)) {
    if (!meet(schedule, send, receive)) {
      check(false, "pipeline schedule: {} meets {}, which is another message",
            place(schedule, send.rank, send.action), place(schedule, receive.rank, receive.action));
    }
    check_partner(Direction::kSend, send, receive);
    check_partner(Direction::kReceive, receive, send);
  }
}

void check_no_deadlock(const Schedule& schedule) {
  const Arrivals arrivals = play(schedule, 1, 1);
  std::string waiting;
  for (std::size_t rank = 0; rank < arrivals.size(); ++rank) {
    const std::size_t at = arrivals[rank].size() - 1;
    if (at < schedule.ranks[rank].size()) {
      waiting += (waiting.empty() ? "" : "; ") + place(schedule, rank, at);
    }
  }
  check(waiting.empty(), "pipeline schedule: these wait for each other for ever: {}", waiting);
}

}  // namespace

void validate(const Schedule& schedule) {
  check(static_cast<int>(schedule.ranks.size()) == schedule.pipeline_ranks,
        "pipeline schedule: {} ranks are described, of {}", schedule.ranks.size(),
        schedule.pipeline_ranks);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    RankWalk(schedule, rank).walk();
  }
  check_pairs(schedule);
  check_no_deadlock(schedule);
}

}  // namespace dstrain
