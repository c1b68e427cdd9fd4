#include "engine/parallel/pipeline.h"

namespace dstrain {

void run_schedule(const std::vector<Action>& actions,
                  PipelineChunks& chunks,
                  Communicator& pipeline,
                  Stream& compute) {
  std::vector<P2p> messages;
  for (const Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::kForward:
        chunks.forward(action.chunk, action.micro_batch, action.together);
        break;
      case Action::Kind::kBackward:
        chunks.backward(action.chunk, action.micro_batch, action.together);
        break;
      case Action::Kind::kExchange:
        messages.clear();
        for (const Message& message : action.messages) {
          const bool sends = message.direction == Message::Direction::kSend;
          messages.push_back({.kind = sends ? P2p::Kind::kSend : P2p::Kind::kReceive,
                              .peer = message.peer,
                              .tensor = chunks.edge(message.what, message.direction)});
        }
        pipeline.exchange(messages, Purpose::kActivation, compute);
        break;
    }
  }
}

}  // namespace dstrain
