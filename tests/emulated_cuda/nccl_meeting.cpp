#include "tests/emulated_cuda/nccl_meeting.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"

namespace dstrain::emulated {
namespace {

double read(const void* data, ncclDataType_t type, std::size_t i) {
  switch (type) {
    case ncclFloat16:
      return static_cast<double>(to_float(static_cast<const F16*>(data)[i]));
    case ncclBfloat16:
      return static_cast<double>(to_float(static_cast<const BF16*>(data)[i]));
    case ncclFloat32:
      return static_cast<double>(static_cast<const float*>(data)[i]);
    case ncclInt32:
      return static_cast<double>(static_cast<const std::int32_t*>(data)[i]);
    default:
      return static_cast<const double*>(data)[i];
  }
}

void write(void* data, ncclDataType_t type, std::size_t i, double value) {
  switch (type) {
    case ncclFloat16:
      static_cast<F16*>(data)[i] = to_f16(static_cast<float>(value));
      break;
    case ncclBfloat16:
      static_cast<BF16*>(data)[i] = to_bf16(static_cast<float>(value));
      break;
    case ncclFloat32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case ncclInt32:
      static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
      break;
    default:
      static_cast<double*>(data)[i] = value;
  }
}

/// All parts' sums or maxima, rounded at every step.
std::vector<std::byte> reduce(const std::vector<std::vector<std::byte>>& inputs, const Part& like) {
  std::vector<std::byte> result = inputs.back();
  for (std::size_t rank = inputs.size() - 1; rank-- > 0;) {
    for (std::size_t i = 0; i < like.count; ++i) {
      const double left = read(result.data(), like.type, i);
      const double right = read(inputs[rank].data(), like.type, i);
      write(result.data(), like.type, i,
            like.op == ncclSum ? left + right : std::fmax(left, right));
    }
  }
  return result;
}

/// Done by the last to arrive, for all.
void complete(const Round& round) {
  const Part& like = round.parts.begin()->second;
  const std::size_t bytes = like.count * size_of(like.type);
  std::vector<std::vector<std::byte>> inputs;
  for (const auto& [rank, part] : round.parts) {
    const auto* const from = static_cast<const std::byte*>(part.send);
    inputs.emplace_back(from, from + bytes);
  }
  std::vector<std::byte> whole;
  if (like.kind == Kind::kAllReduce || like.kind == Kind::kReduceScatter) {
    whole = reduce(inputs, like);
  } else if (like.kind == Kind::kBroadcast) {
    whole = inputs[static_cast<std::size_t>(like.root)];
  } else {
    for (const auto& input : inputs) {
      whole.insert(whole.end(), input.begin(), input.end());
    }
  }
  for (const auto& [rank, part] : round.parts) {
    const std::size_t share = whole.size() / round.parts.size();
    const bool scattered = like.kind == Kind::kReduceScatter;
    std::memcpy(part.receive,
                whole.data() + (scattered ? static_cast<std::size_t>(rank) * share : 0),
                scattered ? share : whole.size());
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

void take_part(Place& place, std::uint64_t number, const Part& part) {
  Meeting& meeting = *place.meeting;
  std::unique_lock lock(meeting.mutex);
  Round& round = meeting.rounds[number];
  round.parts[place.rank] = part;
  const bool all = static_cast<int>(round.parts.size()) == meeting.size &&
                   std::all_of(round.parts.begin(), round.parts.end(),
                               [&](const auto& other) { return other.second.matches(part); });
  if (all && !place.aborted) {
    complete(round);
    round.done = true;
    meeting.changed.notify_all();
  }
  meeting.changed.wait(lock, [&] { return round.done || place.aborted; });
  if (!round.done) {
    round.parts.erase(place.rank);  // its memory may go now
  }
}

void transfer(Place& place, const std::vector<Message>& messages) {
  Meeting& meeting = *place.meeting;
  std::unique_lock lock(meeting.mutex);
  std::vector<std::shared_ptr<Posted>> sent;
  for (const Message& message : messages) {
    if (message.is_send) {
      sent.push_back(std::make_shared<Posted>(Posted{message.data, message.bytes}));
      meeting.posted[{place.rank, message.peer}].push_back(sent.back());
    }
  }
  meeting.changed.notify_all();
  for (const Message& message : messages) {
    if (message.is_send) continue;
    auto& queue = meeting.posted[{message.peer, place.rank}];
    meeting.changed.wait(lock, [&] {
      return place.aborted || (!queue.empty() && queue.front()->bytes == message.bytes);
    });
    if (place.aborted) break;
    std::memcpy(message.data, queue.front()->data, message.bytes);
    queue.front()->taken = true;
    queue.pop_front();
    meeting.changed.notify_all();
  }
  meeting.changed.wait(lock, [&] {
    return place.aborted ||
           std::all_of(sent.begin(), sent.end(), [](const auto& one) { return one->taken; });
  });
  if (place.aborted) {
    for (auto& [way, queue] : meeting.posted) {
      if (way.first == place.rank) queue.clear();
    }
  }
}

}  // namespace dstrain::emulated
