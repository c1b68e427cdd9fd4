#include <algorithm>

#include "engine/plan/schedule.h"

namespace dstrain {

ActivationSlots::ActivationSlots(const Schedule& schedule, int rank)
    : micro_batches_(schedule.micro_batches),
      num_slots_(static_cast<std::size_t>(schedule.chunks)),
      slots_(static_cast<std::size_t>(schedule.chunks * schedule.micro_batches)) {
  std::vector<std::vector<bool>> taken(num_slots_.size());  // [chunk][slot]
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    for (int k = action.micro_batch; k < action.micro_batch + action.together; ++k) {
      int& slot = slots_[static_cast<std::size_t>(action.chunk * micro_batches_ + k)];
      if (action.kind == Action::Kind::kForward) {
        const auto free = std::find(taken[chunk].begin(), taken[chunk].end(), false);
        slot = static_cast<int>(free - taken[chunk].begin());
        if (free == taken[chunk].end()) {
          taken[chunk].push_back(true);
        } else {
          *free = true;
        }
      } else if (action.kind == Action::Kind::kBackward) {
        taken[chunk][static_cast<std::size_t>(slot)] = false;
      }
    }
  }
  for (std::size_t chunk = 0; chunk < taken.size(); ++chunk) {
    num_slots_[chunk] = static_cast<int>(taken[chunk].size());
  }
}

int ActivationSlots::num_slots(int chunk) const {
  return num_slots_[static_cast<std::size_t>(chunk)];
}

int ActivationSlots::slot_of(int chunk, int micro_batch) const {
  return slots_[static_cast<std::size_t>(chunk * micro_batches_ + micro_batch)];
}

}  // namespace dstrain
