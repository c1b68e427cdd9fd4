#include "engine/train/load_states.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/placed_tensor.h"
#include "engine/train/training_state.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// What a checkpoint has of a tensor.
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

/// Fills each of `tensors` with the weighted sum of states.
void load_sums(const fs::path& checkpoint,
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

std::vector<CheckpointTensor> parameters_of(const Engine& engine) {
  std::vector<CheckpointTensor> tensors = state_tensors(engine, StateExtent::kEverything);
  std::erase_if(tensors,
                [](const CheckpointTensor& tensor) { return tensor.state != kParameterState; });
  return tensors;
}

}  // namespace

bool holds_parameters_alone(const fs::path& checkpoint) {
  const std::vector<CheckpointEntry> held = CheckpointStore::contents(checkpoint);
  return std::all_of(held.begin(), held.end(),
                     [](const CheckpointEntry& entry) { return entry.state == kParameterState; });
}

TrainingState load_states(Engine& engine, const fs::path& checkpoint) {
  if (holds_parameters_alone(checkpoint)) {
    if (engine.world().rank() == 0) {
      spdlog::info("{} holds only parameters: the optimizer starts afresh, at step 0",
                   checkpoint.string());
    }
    return CheckpointStore::load(checkpoint, parameters_of(engine));
  }
  const RunPlan& plan = engine.plan();
  const Contents contents = contents_of(checkpoint);
  const int ranks = plan.mesh.degree(kGradientAxes);
  const int rank = plan.mesh.index(kGradientAxes, plan.rank);
  std::vector<CheckpointTensor> as_saved;
  std::map<Terms, std::vector<CheckpointTensor>> sums;
  for_each_state(
      engine, StateExtent::kEverything, OwnStates::all(plan),
      [&](const StatePart& part, CheckpointTensor tensor) {
        const auto found = contents.find(part.piece.tensor);
        const std::set<std::string> states =
            found == contents.end() ? std::set<std::string>{} : found->second.states;
        if (part.is_factor &&
            (found == contents.end() || found->second.shape != part.piece.shape)) {
          return;  // as it was drawn
        }
        const int owners = owners_of(states, part.state);
        const bool is_shared = states.contains(part.state);
        tensor.state = part.state;
        if (part.is_own && owners == ranks) {
          tensor.state = own_state_name(part.state, rank);
        } else if (owners > 0 && !is_shared) {
          const bool adds_servers =
              ranks == 1 && part.region == RegionKind::kUnsent && states.contains(kServersState);
          sums[mean_of(part.state, owners, adds_servers)].push_back(std::move(tensor));
          return;
        } else if (part.may_be_absent && !is_shared) {
          write(tensor, std::vector<float>(static_cast<std::size_t>(tensor.data.numel())));
          return;
        }
        as_saved.push_back(std::move(tensor));
      });
  TrainingState state = CheckpointStore::load(checkpoint, as_saved);
  if (!sums.empty() && engine.world().rank() == 0) {
    spdlog::info(
        "{} has states that each of its data-parallel ranks had of its own: the {} of this "
        "run take their means",
        checkpoint.string(), ranks);
  }
  for (const auto& [terms, tensors] : sums) {
    load_sums(checkpoint, tensors, terms);
  }
  return state;
}

}  // namespace dstrain
