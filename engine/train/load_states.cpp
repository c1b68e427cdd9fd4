#include "engine/train/load_states.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/placed_tensor.h"
#include "engine/train/training_state.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// The states that a checkpoint has of a tensor, and the tensor's shape.
struct Stored {
  std::set<std::string> states;
  Shape shape;
};
using Contents = std::map<std::string, Stored>;

Contents contents_of(const fs::path& checkpoint) {
  Contents contents;
  for (const CheckpointEntry& entry : CheckpointStore::contents(checkpoint)) {
    Stored& stored = contents[entry.tensor];
    stored.states.insert(entry.state);
    stored.shape = entry.shape;
  }
  return contents;
}

/// The number of ranks of which a checkpoint has the state.
int owners_of(const std::set<std::string>& states, const std::string& state) {
  int owners = 0;
  while (states.contains(own_state_name(state, owners))) {
    ++owners;
  }
  return owners;
}

void write(const CheckpointTensor& tensor, const std::vector<float>& values) {
  const Tensor& data = tensor.data;
  std::vector<std::byte> bytes(static_cast<std::size_t>(data.bytes()));
  convert_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, bytes.data(),
                   data.dtype(), data.numel());
  if (tensor.device == nullptr) {
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(data.data()));
    return;
  }
  Stream& stream = tensor.device->compute_stream();
  tensor.device->copy_from_host(bytes.data(), data, stream);
  stream.synchronize();
}

/// A state of a checkpoint, and the weight with which it goes into one of the engine.
using Terms = std::vector<std::pair<std::string, float>>;

void load_few_sums(const fs::path& checkpoint,
                   std::span<const CheckpointTensor> tensors,
                   const Terms& terms) {
  std::vector<std::vector<float>> sums;
  std::vector<std::vector<float>> ones;
  for (const CheckpointTensor& tensor : tensors) {
    sums.emplace_back(static_cast<std::size_t>(tensor.data.numel()));
    ones.push_back(sums.back());
  }
  for (const auto& [state, weight] : terms) {
    std::vector<CheckpointTensor> parts(tensors.begin(), tensors.end());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].state = state;
      parts[i].data = {ones[i].data(), DType::kF32, tensors[i].data.shape()};
      parts[i].device = nullptr;
    }
    static_cast<void>(CheckpointStore::load(checkpoint, parts));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (std::size_t k = 0; k < sums[i].size(); ++k) {
        sums[i][k] += weight * ones[i][k];
      }
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    write(tensors[i], sums[i]);
  }
}

/// Fills each of `tensors` with the weighted sum of states, a bounded part of them at a time, since
/// sum and addend lie in the host's memory beside all that is planned there.
void load_sums(const fs::path& checkpoint,
               std::span<const CheckpointTensor> tensors,
               const Terms& terms) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 26;
  while (!tensors.empty()) {
    std::size_t count = 0;
    for (std::int64_t elements = 0; count < tensors.size() && elements < kMostElements; ++count) {
      elements += tensors[count].data.numel();
    }
    load_few_sums(checkpoint, tensors.first(count), terms);
    tensors = tensors.subspan(count);
  }
}

/// The mean of a state over the ranks that had one each, and what servers owed where there are none
/// any more.
Terms mean_of(const std::string& state, int owners, bool adds_servers) {
  Terms terms;
  for (int owner = 0; owner < owners; ++owner) {
    terms.emplace_back(own_state_name(state, owner), 1.0F / static_cast<float>(owners));
  }
  if (adds_servers) terms.emplace_back(kServersState, 1.0F);
  return terms;
}

/// Finds for each state of an engine where a checkpoint has it.
class Loader {
 public:
  Loader(const Engine& engine, const fs::path& checkpoint, const TrainingState& training)
      : plan_(engine.plan()),
        checkpoint_(checkpoint),
        contents_(contents_of(checkpoint)),
        has_base_(training.base.has_value()),
        ranks_(plan_.mesh.degree(kGradientAxes)),
        rank_(plan_.mesh.index(kGradientAxes, plan_.rank)),
        are_alone_(OwnStates::after(plan_, training.optimizer_step).alone) {}

  /// Whether the engine has it from the weights beside which the checkpoint was trained.
  [[nodiscard]] bool is_there(const StatePart& part) const {
    return has_base_ && !plan_.shards.unit(part.unit).trained &&
           !contents_.contains(part.piece.tensor);
  }

  /// Decides where a state comes from.
  void add(const StatePart& part, CheckpointTensor tensor) {
    static const Stored kNothing;
    const auto found = contents_.find(part.piece.tensor);
    const Stored& stored = found == contents_.end() ? kNothing : found->second;
    if (part.is_factor && stored.shape != part.piece.shape) return;  // as it was drawn
    const bool is_own = part.is_own && (are_alone_ || part.region == RegionKind::kUnsent);
    const bool is_shared = stored.states.contains(part.state);
    const int owners = owners_of(stored.states, part.state);
    tensor.state = part.state;
    if (is_own && owners == ranks_) {
      tensor.state = own_state_name(part.state, rank_);
    } else if (part.is_own && !is_own && part.region == RegionKind::kThirdMoment) {
      return clear(tensor);  // of updates that this run has not come to
    } else if (owners > 0 && !is_shared) {
      const bool adds_servers = ranks_ == 1 && part.region == RegionKind::kUnsent &&
                                stored.states.contains(kServersState);
      sums_[mean_of(part.state, owners, adds_servers)].push_back(std::move(tensor));
      return;
    } else if (part.may_be_absent && !is_shared) {
      return clear(tensor);
    } else if (part.region == RegionKind::kThirdMoment && !is_shared) {
      tensor.state = plan_.moments.second_name;  // which it begins as
    }
    if (part.state != kParameterState && stored.states == std::set{std::string(kParameterState)}) {
      untrained_.insert(part.piece.tensor);
    }
    as_saved_.push_back(std::move(tensor));
  }

  /// Throws CheckpointError where this run trains what the one that wrote the checkpoint did not.
  void check_that_all_was_trained() const {
    if (untrained_.empty()) return;
    throw CheckpointError(fmt::format(
        "{} was written by a run that did not train {} (\"{}\"{}), of which it has no state of the "
        "optimizer: name them in training.freeze, or begin anew from its parameters with "
        "model.initial_weights",
        checkpoint_.string(), counted(std::ssize(untrained_), "tensor"), *untrained_.begin(),
        untrained_.size() > 1 ? " is the first" : ""));
  }

  [[nodiscard]] const std::vector<CheckpointTensor>& as_saved() const { return as_saved_; }
  [[nodiscard]] const std::map<Terms, std::vector<CheckpointTensor>>& sums() const { return sums_; }

 private:
  static void clear(const CheckpointTensor& tensor) {
    write(tensor, std::vector<float>(static_cast<std::size_t>(tensor.data.numel())));
  }

  const RunPlan& plan_;
  const fs::path checkpoint_;
  const Contents contents_;
  const bool has_base_;
  const int ranks_;
  const int rank_;
  const bool are_alone_;  // ranks have taken updates of their own, by this run's config
  std::vector<CheckpointTensor> as_saved_;
  std::map<Terms, std::vector<CheckpointTensor>> sums_;
  std::set<std::string> untrained_;
};

}  // namespace

bool holds_parameters_alone(const fs::path& checkpoint) {
  const std::vector<CheckpointEntry> held = CheckpointStore::contents(checkpoint);
  return std::all_of(held.begin(), held.end(),
                     [](const CheckpointEntry& entry) { return entry.state == kParameterState; });
}

TrainingState load_states(Engine& engine, const fs::path& checkpoint) {
  const bool starts_afresh = holds_parameters_alone(checkpoint);
  if (starts_afresh && engine.world().rank() == 0) {
    spdlog::info("{} holds only parameters: the optimizer starts afresh, at step 0",
                 checkpoint.string());
  }
  Loader loader(engine, checkpoint, CheckpointStore::training(checkpoint));
  for_each_state(engine, StateExtent::kEverything, OwnStates::all(engine.plan()),
                 [&](const StatePart& part, CheckpointTensor tensor) {
                   if (loader.is_there(part)) return;
                   if (starts_afresh && part.state != kParameterState) return;
                   loader.add(part, std::move(tensor));
                 });
  loader.check_that_all_was_trained();
  TrainingState state = CheckpointStore::load(checkpoint, loader.as_saved());
  if (!loader.sums().empty() && engine.world().rank() == 0) {
    spdlog::info(
        "{} has states that each of its data-parallel ranks had of its own: the ranks of this run "
        "take their means",
        checkpoint.string());
  }
  for (const auto& [terms, tensors] : loader.sums()) {
    load_sums(checkpoint, tensors, terms);
  }
  return state;
}

}  // namespace dstrain
