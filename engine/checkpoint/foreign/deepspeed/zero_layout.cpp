#include "engine/checkpoint/foreign/deepspeed/zero_layout.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/deepspeed/file_context.h"
#include "engine/checkpoint/foreign/deepspeed/optimizer_step.h"

namespace dstrain {
namespace {

/// One flat tensor of a rank, as fp32 values and, if the optimizer has them, moments.
struct Flat {
  std::array<std::optional<std::size_t>, kStoredStates.size()> sources;
  std::int64_t elements = 0;  ///< of the fp32 values
};

struct RankShard {
  std::vector<Flat> flats;  ///< by group
  std::optional<std::int64_t> optimizer_step;
};

TorchTensor flat_tensor(const PickleValue& value, const std::string& what) {
  TorchTensor tensor = value.tensor(what);
  if (tensor.shape.size() != 1 || !tensor.is_contiguous()) {
    throw CheckpointError(
        fmt::format("{} has {} dims, expected a flat tensor", what, tensor.shape.size()));
  }
  return tensor;
}

/// The optimizer's state of a flat group: base_optimizer_state is a torch optimizer's state_dict,
/// or in an elastic checkpoint a list of states.
std::optional<PickleValue> group_state(const PickleValue& base, std::size_t group) {
  if (base.kind() == PickleKind::kList) {
    const auto states = base.items("base_optimizer_state");
    return group < states.size() ? std::optional(states[group]) : std::nullopt;
  }
  for (const auto& [key, state] : base.at("state").entries("the optimizer's state")) {
    if (key.kind() == PickleKind::kInteger &&
        key.integer("a key") == static_cast<std::int64_t>(group)) {
      return state;
    }
  }
  return std::nullopt;
}

RankShard read_shard(const TorchFile& file, int stage, StoredValues& values) {
  return reading(file, [&](const PickleValue& root) {
    RankShard shard;
    const PickleValue zero = root.at("optimizer_state_dict");
    const std::string key = stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const auto base = zero.find(stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    for (const PickleValue& group : zero.at(key).items(key)) {
      const std::size_t index = shard.flats.size();
      TorchTensor fp32 = flat_tensor(group, fmt::format("group {} of {}", index, key));
      Flat flat{.sources = {}, .elements = fp32.num_elements()};
      flat.sources[0] = values.add(file, std::move(fp32));
      const auto state = base ? group_state(*base, index) : std::nullopt;
      for (std::size_t s = 1; state && s < kStoredStates.size(); ++s) {
        const std::string name(name_of(kStoredStates[s]));
        if (const auto moment = state->find(name)) {
          TorchTensor tensor = flat_tensor(*moment, fmt::format("{} of group {}", name, index));
          const std::int64_t elements = tensor.num_elements();
          if (stage == 3 ? elements != flat.elements : elements < flat.elements) {
            throw CheckpointError(fmt::format("{} of group {} has {} elements, its fp32 values {}",
                                              name, index, elements, flat.elements));
          }
          flat.sources[s] = values.add(file, std::move(tensor));
        }
      }
      if (state) {
        const auto step = state->find("step");
        if (step && !step->is_none()) {
          const std::int64_t count = read_optimizer_step(*step, file);
          if (shard.optimizer_step.value_or(count) != count) {
            throw CheckpointError(fmt::format("group {} is of step {}, those before it of {}",
                                              index, count, *shard.optimizer_step));
          }
          shard.optimizer_step = count;
        }
      }
      shard.flats.push_back(flat);
    }
    return shard;
  });
}

/// DeepSpeed's own number of ranks, for every group the same unless experts have their own.
void check_partition_count(const TorchFile& file, std::size_t num_ranks) {
  reading(file, [&](const PickleValue& root) {
    const auto count = root.at("optimizer_state_dict").find("partition_count");
    if (!count) {
      return;
    }
    const std::vector<PickleValue> counts = count->kind() == PickleKind::kInteger
                                                ? std::vector{*count}
                                                : count->items("partition_count");
    for (const PickleValue& ranks : counts) {
      if (ranks.integer("partition_count") != static_cast<std::int64_t>(num_ranks)) {
        throw CheckpointError(
            fmt::format("split over {} ranks, but there are {} optim_states files",
                        ranks.integer("partition_count"), num_ranks));
      }
    }
  });
}

/// Adds the range of a row of flats as parts, for each state that all of them have.
class FlatRow {
 public:
  /// `flats` follow each other; the row is what a parameter is counted along.
  explicit FlatRow(std::vector<const Flat*> flats) : flats_(std::move(flats)) {
    for (const Flat* flat : flats_) {
      begins_.push_back(total_);
      total_ += flat->elements;
    }
  }

  [[nodiscard]] std::int64_t total() const { return total_; }

  void cut(std::int64_t first, std::int64_t elements, DeepSpeedTensor& tensor) const {
    auto at = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), first) -
                                       begins_.begin());
    for (at = at == 0 ? 0 : at - 1; elements > 0 && at < flats_.size(); ++at) {
      const Flat& flat = *flats_[at];
      const std::int64_t from = first - begins_[at];
      const std::int64_t count = std::min(elements, flat.elements - from);
      if (count <= 0) {
        continue;
      }
      for (std::size_t s = 0; s < kStoredStates.size(); ++s) {
        if (!flat.sources[s]) {
          tensor.parts[s].reset();
        } else if (tensor.parts[s]) {
          tensor.parts[s]->push_back(
              {.source = *flat.sources[s], .first = from, .elements = count});
        }
      }
      first += count;
      elements -= count;
    }
  }

 private:
  std::vector<const Flat*> flats_;
  std::vector<std::int64_t> begins_;
  std::int64_t total_ = 0;
};

DeepSpeedTensor& add_tensor(DeepSpeedTensors& tensors,
                            const TorchFile& model_states,
                            const std::string& name,
                            const std::vector<std::int64_t>& shape) {
  DeepSpeedTensor tensor{
      .shape = shape, .role = StoredRole::kTrained, .dtype = {}, .shared_with = {}, .parts = {}};
  tensor.parts.fill(std::vector<StoredPart>{});
  const auto [at, is_new] = tensors.emplace(name, std::move(tensor));
  if (!is_new) {
    throw CheckpointError(
        fmt::format("{}: \"{}\" is in two groups of param_shapes", model_states.path(), name));
  }
  return at->second;
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

[[noreturn]] void refuse_sum(const TorchFile& file,
                             const std::string& group,
                             std::int64_t wanted,
                             std::int64_t given) {
  throw CheckpointError(
      fmt::format("{}: the parameters of {} need {} elements, the optim_states have {}: files of "
                  "different runs",
                  file.path(), group, wanted, given));
}

void lay_out_split_groups(const std::vector<GroupShapes>& groups,
                          const std::vector<RankShard>& shards,
                          const TorchFile& model_states,
                          DeepSpeedTensors& tensors) {
  for (std::size_t group = 0; group < groups.size(); ++group) {
    std::vector<const Flat*> flats;
    for (const RankShard& shard : shards) {
      flats.push_back(&shard.flats[group]);
    }
    const FlatRow row(std::move(flats));
    std::int64_t wanted = 0;
    for (const auto& [name, shape] : groups[group]) {
      std::int64_t end = 0;
      if (__builtin_add_overflow(wanted, count_elements(shape), &end) || end > row.total()) {
        refuse_sum(model_states, fmt::format("group {}", group), end, row.total());
      }
      row.cut(wanted, end - wanted, add_tensor(tensors, model_states, name, shape));
      wanted = end;
    }
    // The rest is padding: DeepSpeed fills a group up to a multiple of twice the ranks.
    const auto alignment = 2 * static_cast<std::int64_t>(shards.size());
    if (round_up(wanted, alignment) != round_up(row.total(), alignment)) {
      refuse_sum(model_states, fmt::format("group {}", group), wanted, row.total());
    }
  }
}

void lay_out_split_parameters(const std::vector<GroupShapes>& groups,
                              const std::vector<RankShard>& shards,
                              const TorchFile& model_states,
                              DeepSpeedTensors& tensors) {
  std::vector<FlatRow> rows;
  for (const RankShard& shard : shards) {
    std::vector<const Flat*> flats;
    for (const Flat& flat : shard.flats) {
      flats.push_back(&flat);
    }
    rows.emplace_back(std::move(flats));
  }
  const auto num_ranks = static_cast<std::int64_t>(shards.size());
  std::int64_t at = 0;
  for (const GroupShapes& group : groups) {
    for (const auto& [name, shape] : group) {
      const std::int64_t elements = count_elements(shape);
      const std::int64_t slice = elements / num_ranks + (elements % num_ranks != 0 ? 1 : 0);
      DeepSpeedTensor& tensor = add_tensor(tensors, model_states, name, shape);
      for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
        const FlatRow& row = rows[static_cast<std::size_t>(rank)];
        if (slice > row.total() - at) {
          refuse_sum(model_states, fmt::format("\"{}\"", name), at + slice, row.total());
        }
        row.cut(at, std::clamp(elements - rank * slice, std::int64_t{0}, slice), tensor);
      }
      at += slice;
    }
  }
  for (const FlatRow& row : rows) {
    if (row.total() != at) {
      refuse_sum(model_states, "all groups", at, row.total());
    }
  }
}

}  // namespace

int read_zero_stage(const TorchFile& optim_states) {
  return reading(optim_states, [](const PickleValue& root) {
    const auto stage = root.at("optimizer_state_dict").find("zero_stage");
    if (!stage) {
      return 1;
    }
    const bool is_enum = stage->class_name() == "deepspeed.runtime.zero.config.ZeroStageEnum";
    const auto arguments =
        is_enum ? stage->arguments("zero_stage").items("zero_stage") : std::vector{*stage};
    const std::int64_t value = arguments.empty() ? -1 : arguments[0].integer("zero_stage");
    if (value < 1 || value > 3) {
      throw CheckpointError(fmt::format("zero_stage is {}, expected 1, 2 or 3", value));
    }
    return static_cast<int>(value);
  });
}

ZeroLayout lay_out_zero(const TorchFile& model_states,
                        std::span<const TorchFile* const> optim_states,
                        StoredValues& values) {
  const int stage = read_zero_stage(*optim_states[0]);
  const auto groups = read_param_shapes(model_states);
  if (groups.empty()) {
    throw CheckpointError(fmt::format(
        "{} has no param_shapes, so where its flattened parameters lie is not known; load it with "
        "DeepSpeed and save it with a release that writes them",
        model_states.path()));
  }
  std::vector<RankShard> shards;
  for (const TorchFile* file : optim_states) {
    if (read_zero_stage(*file) != stage) {
      throw CheckpointError(fmt::format("{} is of another ZeRO stage than {}", file->path(),
                                        optim_states[0]->path()));
    }
    check_partition_count(*file, optim_states.size());
    shards.push_back(read_shard(*file, stage, values));
    if (shards.back().flats.size() != (stage == 3 ? shards[0].flats.size() : groups.size())) {
      throw CheckpointError(fmt::format("{} has {} groups, expected {}", file->path(),
                                        shards.back().flats.size(),
                                        stage == 3 ? shards[0].flats.size() : groups.size()));
    }
    if (shards.back().optimizer_step != shards[0].optimizer_step) {
      throw CheckpointError(fmt::format(
          "{} is of another step than {}: the checkpoint was overwritten and not finished",
          file->path(), optim_states[0]->path()));
    }
  }
  ZeroLayout layout{.tensors = {}, .optimizer_step = shards[0].optimizer_step};
  (stage == 3 ? lay_out_split_parameters : lay_out_split_groups)(groups, shards, model_states,
                                                                 layout.tensors);
  for (auto& [name, tensor] : layout.tensors) {
    const auto& parts = *tensor.parts[0];
    tensor.dtype = parts.empty() ? "F32" : values.tensor(parts[0].source).dtype->safetensors_name;
  }
  return layout;
}

}  // namespace dstrain
