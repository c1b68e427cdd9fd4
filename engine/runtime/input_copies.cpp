#include "engine/runtime/input_copies.h"

namespace dstrain {

InputCopies::InputCopies(Device& device)
    : device_(device),
      leaving_(device.make_side_stream("inputs leave")),
      coming_(device.make_side_stream("inputs come")) {}

void InputCopies::take(const Kept& kept, ConstTensor input, const Places& places, Stream& compute) {
  if (const auto old = find(kept)) {  // of an earlier micro-batch
    places_[*old].buffer = -1;
  }
  const std::size_t at = next();
  compute.wait(places_[at].busy);
  device_.copy(input, places[at], compute);
  leaving_->wait(compute.record());
  device_.copy_to_host(places[at], kept.host.data(), *leaving_);
  places_[at] = {
      .buffer = kept.buffer, .slot = kept.slot, .arrived = {}, .busy = leaving_->record()};
}

ConstTensor InputCopies::bring(const Kept& kept, const Places& places, Stream& compute) {
  bring_soon(kept, places, compute);
  last_ = *find(kept);
  compute.wait(places_[last_].arrived);
  return places[last_];
}

void InputCopies::bring_soon(const Kept& kept, const Places& places, Stream& compute) {
  if (const auto here = find(kept)) {
    last_ = *here;
    return;
  }
  const std::size_t at = next();
  coming_->wait(compute.record());    // which has read what the place held
  coming_->wait(leaving_->record());  // on which that, and what is to come, has left
  device_.copy_from_host(kept.host.data(), places[at], *coming_);
  const Event arrived = coming_->record();
  places_[at] = {.buffer = kept.buffer, .slot = kept.slot, .arrived = arrived, .busy = arrived};
}

void InputCopies::synchronize() {
  leaving_->synchronize();
  coming_->synchronize();
}

std::optional<std::size_t> InputCopies::find(const Kept& kept) const {
  for (std::size_t at = 0; at < places_.size(); ++at) {
    if (places_[at].buffer == kept.buffer && places_[at].slot == kept.slot) {
      return at;
    }
  }
  return std::nullopt;
}

}  // namespace dstrain
