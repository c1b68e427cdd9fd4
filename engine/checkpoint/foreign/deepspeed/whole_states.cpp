#include "engine/checkpoint/foreign/deepspeed/whole_states.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/deepspeed/file_context.h"
#include "engine/checkpoint/foreign/deepspeed/optimizer_step.h"
#include "kernels/core/dtype.h"

namespace dstrain {
namespace {

using Shape64 = std::vector<std::int64_t>;

/// The optimizer's tensors by StoredState, for one parameter or for a whole group.
struct Item {
  std::array<std::optional<std::size_t>, kStoredStates.size()> sources;
};
struct Group {
  bool is_flat = false;
  std::vector<Item> items;  ///< one, if it is flat
};

struct Named {
  std::string name;
  DeepSpeedTensor* tensor;
  bool taken = false;
};

/// The trained parameters, in the module's order, each once.
std::vector<Named> parameters_in_order(DeepSpeedTensors& tensors, const PickleValue& root) {
  std::vector<Named> parameters;
  for (const auto& [key, value] : root.at("module").entries("module")) {
    const auto found = tensors.find(key.text("a name in module"));
    if (found != tensors.end() && found->second.role == StoredRole::kTrained &&
        found->second.shared_with.empty()) {
      parameters.push_back({found->first, &found->second});
    }
  }
  return parameters;
}

class Reader {
 public:
  Reader(const TorchFile& file, StoredValues& values) : file_(file), values_(values) {}

  [[nodiscard]] const std::optional<std::int64_t>& step() const { return step_; }

  std::vector<Group> groups(const PickleValue& optimizer) {
    const auto inner = optimizer.find("optimizer_state_dict");
    const PickleValue& states = inner ? *inner : optimizer;
    const auto masters = optimizer.find("fp32_groups");
    const auto flat = optimizer.find("fp32_groups_flat");
    std::map<std::int64_t, PickleValue> by_number;
    for (const auto& [key, state] : states.at("state").entries("the optimizer's state")) {
      by_number.emplace(key.integer("a parameter's number"), state);
    }
    std::vector<Group> groups;
    for (const PickleValue& described : states.at("param_groups").items("param_groups")) {
      const std::size_t index = groups.size();
      Group& group = groups.emplace_back();
      group.is_flat = flat.has_value();
      std::vector<PickleValue> own;
      if (flat) {
        own.push_back(of_group(flat->items("fp32_groups_flat"), index));
      } else if (masters) {
        own = of_group(masters->items("fp32_groups"), index).items("a group's masters");
      }
      for (const PickleValue& number : described.at("params").items("params")) {
        const std::size_t at = group.items.size();
        Item& item = group.items.emplace_back();
        if (at < own.size()) {
          item.sources[0] = add(own[at], "a master");
        }
        const auto state = by_number.find(number.integer("a parameter's number"));
        if (state != by_number.end()) {
          add_moments(state->second, item);
        }
        check_sizes(item);
      }
      if (group.is_flat && (group.items.size() != 1 || !group.items[0].sources[0])) {
        throw CheckpointError(
            fmt::format("a flat group of {} tensors, expected one", group.items.size()));
      }
    }
    return groups;
  }

 private:
  static PickleValue of_group(const std::vector<PickleValue>& values, std::size_t index) {
    if (index >= values.size()) {
      throw CheckpointError(
          fmt::format("masters of {} groups, and param_groups has more", values.size()));
    }
    return values[index];
  }

  void check_sizes(const Item& item) const {
    std::optional<std::int64_t> elements;
    for (const auto& source : item.sources) {
      const std::int64_t own = source ? values_.tensor(*source).num_elements() : 0;
      if (source && elements.value_or(own) != own) {
        throw CheckpointError(fmt::format(
            "the optimizer's states of one parameter have {} and {} elements", *elements, own));
      }
      elements = source ? own : elements;
    }
  }

  std::size_t add(const PickleValue& value, const std::string& what) {
    TorchTensor tensor = value.tensor(what);
    if (!tensor.is_contiguous()) {
      throw CheckpointError(what + " of the optimizer's is not contiguous");
    }
    return values_.add(file_, std::move(tensor));
  }

  void add_moments(const PickleValue& state, Item& item) {
    for (std::size_t s = 1; s < kStoredStates.size(); ++s) {
      const std::string name(name_of(kStoredStates[s]));
      if (const auto moment = state.find(name)) {
        item.sources[s] = add(*moment, name);
      }
    }
    if (const auto step = state.find("step"); step && !step->is_none()) {
      const std::int64_t count = read_optimizer_step(*step, file_);
      if (step_.value_or(count) != count) {
        throw CheckpointError("the optimizer's parameters are of different steps");
      }
      step_ = count;
    }
  }

  const TorchFile& file_;
  StoredValues& values_;
  std::optional<std::int64_t> step_;
};

/// Rounds as the run did when it made its working copy.
float rounded(float value, std::string_view dtype) {
  return dtype == "BF16"  ? to_float(to_bf16(value))
         : dtype == "F16" ? to_float(to_f16(value))
                          : value;
}

class Namer {
 public:
  Namer(std::vector<Named> parameters, StoredValues& values)
      : parameters_(std::move(parameters)), values_(values) {}

  bool name_all(const std::vector<Group>& groups) {
    return std::all_of(groups.begin(), groups.end(), [&](const Group& group) {
      return group.is_flat ? name_flat(group.items.at(0)) : name_each(group);
    });
  }
  /// Gives each parameter its states, where the file names them.
  void give_states() {
    for (const auto& [tensor, parts] : given_) {
      for (std::size_t s = 0; s < kStoredStates.size(); ++s) {
        if (parts[s]) {
          tensor->parts[s] = {*parts[s]};
        }
      }
    }
  }
  /// For states without masters: whether all parameters of a shape have one, in one group. If so,
  /// their order says which is which.
  [[nodiscard]] bool shapes_tell(const std::vector<Group>& groups) const {
    struct Seen {
      std::size_t group;
      std::int64_t missing;
    };
    std::map<Shape64, std::int64_t> count;
    for (const Named& parameter : parameters_) {
      count[parameter.tensor->shape] += 1;
    }
    std::map<Shape64, Seen> seen;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const Item& item : groups[g].items) {
        if (!item.sources[0] && item.sources[1]) {
          const Shape64& shape = values_.tensor(*item.sources[1]).shape;
          Seen& of_shape = seen.try_emplace(shape, Seen{g, count[shape]}).first->second;
          of_shape.missing -= 1;
          if (of_shape.group != g) {
            return false;
          }
        }
      }
    }
    return std::all_of(seen.begin(), seen.end(),
                       [](const auto& of_shape) { return of_shape.second.missing == 0; });
  }

 private:
  using Parts = std::array<std::optional<StoredPart>, kStoredStates.size()>;

  bool name_each(const Group& group) {
    auto at = parameters_.begin();
    for (const Item& item : group.items) {
      const std::size_t any = item.sources[0].value_or(item.sources[1].value_or(kNone));
      if (any == kNone) {  // never had a gradient
        return false;
      }
      const Shape64& shape = values_.tensor(any).shape;
      at = std::find_if(at, parameters_.end(), [&](const Named& parameter) {
        return !parameter.taken && parameter.tensor->shape == shape &&
               (!item.sources[0] || rounds_to(*item.sources[0], 0, parameter));
      });
      if (at == parameters_.end()) {
        return false;
      }
      take(*at++, item, 0);
    }
    return true;
  }

  bool name_flat(const Item& item) {
    std::int64_t offset = 0;
    const std::int64_t end = values_.tensor(item.sources[0].value()).num_elements();
    for (Named& parameter : parameters_) {
      const std::int64_t elements = parameter.tensor->num_elements();
      if (!parameter.taken && offset + elements <= end &&
          rounds_to(*item.sources[0], offset, parameter)) {
        take(parameter, item, offset);
        offset += elements;
      }
    }
    return end - offset < kMostPadding;
  }

  void take(Named& parameter, const Item& item, std::int64_t offset) {
    parameter.taken = true;
    Parts parts;
    for (std::size_t s = 0; s < kStoredStates.size(); ++s) {
      if (item.sources[s]) {
        parts[s] = StoredPart{.source = *item.sources[s],
                              .first = offset,
                              .elements = parameter.tensor->num_elements()};
      }
    }
    given_.emplace_back(parameter.tensor, parts);
  }

  /// Compares the first elements, which distinguish any two trained matrices.
  bool rounds_to(std::size_t source, std::int64_t offset, const Named& parameter) {
    constexpr std::int64_t kCompared = 4096;
    const std::int64_t count = std::min(kCompared, parameter.tensor->num_elements());
    std::vector<float> masters(static_cast<std::size_t>(count));
    std::vector<float> working(masters.size());
    DeepSpeedTensor master;
    master.shape = {offset + count};
    master.parts[0] = {StoredPart{.source = source, .elements = offset + count}};
    values_.read(master, StoredState::kFp32, offset, masters);
    values_.read(*parameter.tensor, StoredState::kFp32, 0, working);
    for (std::size_t i = 0; i < working.size(); ++i) {
      if (rounded(masters[i], parameter.tensor->dtype) != working[i]) {
        return false;
      }
    }
    return true;
  }

  static constexpr std::size_t kNone = ~std::size_t{0};
  static constexpr std::int64_t kMostPadding = 64;  // elements; a flat group may be aligned

  std::vector<Named> parameters_;
  StoredValues& values_;
  std::vector<std::pair<DeepSpeedTensor*, Parts>> given_;
};

}  // namespace

WholeStates add_whole_states(DeepSpeedTensors& tensors,
                             const TorchFile& model_states,
                             StoredValues& values) {
  return reading(model_states, [&](const PickleValue& root) -> WholeStates {
    const auto optimizer = root.find("optimizer");
    if (!optimizer || optimizer->kind() != PickleKind::kDict) {
      return {};
    }
    const auto inner = optimizer->find("optimizer_state_dict");
    if (!(inner ? *inner : *optimizer).find("param_groups")) {
      return {};  // a custom optimizer
    }
    Reader reader(model_states, values);
    const std::vector<Group> groups = reader.groups(*optimizer);
    Namer namer(parameters_in_order(tensors, root), values);
    if (!namer.shapes_tell(groups) || !namer.name_all(groups)) {
      return {};
    }
    namer.give_states();
    return {.found = true, .optimizer_step = reader.step()};
  });
}

}  // namespace dstrain
