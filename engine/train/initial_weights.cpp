#include "engine/train/initial_weights.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/model_tensors.h"
#include "engine/checkpoint/placed_tensor.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/config/arch/adapters.h"
#include "engine/config/config_error.h"
#include "engine/model/encode_nf4.h"
#include "engine/train/training_state.h"

namespace dstrain {
namespace {

// The ways in which a rank's reading can end.
constexpr std::int32_t kWrongConfig = 1;
constexpr std::int32_t kUnusable = 2;

/// Copies bytes of the host to a tensor on `device`; nullptr: on the host.
void copy_to(Device* device, const std::byte* from, Tensor to) {
  if (device == nullptr) {
    std::memcpy(to.data(), from, static_cast<std::size_t>(to.bytes()));
    return;
  }
  Stream& stream = device->compute_stream();
  device->copy_from_host(from, to, stream);
  stream.synchronize();
}

void read_parameter(const TensorSource& source, const CheckpointTensor& parameter) {
  if (parameter.device == nullptr) {
    source.read(parameter.state, parameter.piece, parameter.data);
    return;
  }
  std::vector<std::byte> host(static_cast<std::size_t>(parameter.data.bytes()));
  source.read(parameter.state, parameter.piece,
              {host.data(), parameter.data.dtype(), parameter.data.shape()});
  copy_to(parameter.device, host.data(), parameter.data);
}

/// All of the matrices that are coded together with one, as numbers of the compute dtype.
std::vector<float> read_together(const TensorSource& source,
                                 const std::vector<std::string>& tensors,
                                 DType compute) {
  std::vector<float> values;
  for (const std::string& tensor : tensors) {
    const auto entries = source.entries();
    const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& other) {
      return other.state == kParameterState && other.tensor == tensor;
    });
    if (entry == entries.end()) continue;  // of other blocks
    const Range all{0, entry->shape.numel()};
    std::vector<std::byte> rounded(static_cast<std::size_t>(all.size() * size_of(compute)));
    source.read(kParameterState, piece_of({tensor, entry->shape}, all),
                {rounded.data(), compute, Shape{all.size()}});
    const std::size_t first = values.size();
    values.resize(first + static_cast<std::size_t>(all.size()));
    convert_elements(rounded.data(), compute, reinterpret_cast<std::byte*>(values.data() + first),
                     DType::kF32, all.size());
  }
  return values;
}

/// Reads matrices that lie in a code and codes them. Codes are of whole matrices, as their authors
/// stack them, so that each rank reads all of those of which it has a part.
void read_coded(const TensorSource& source, Engine& engine) {
  const RunPlan& plan = engine.plan();
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    const UnitDecl& decl = plan.shards.unit(unit);
    const Range owned = plan.memory.owned(unit);
    for (int index = 0; index < static_cast<int>(decl.params.size()); ++index) {
      const ParamDecl& param = decl.params[static_cast<std::size_t>(index)];
      if (!param.code) continue;
      const std::int64_t first = decl.offset_of(index);
      const Range mine{std::max(first, owned.begin),
                       std::min(first + param.code_elements, owned.end)};
      if (mine.begin >= mine.end) continue;
      const Tensor held =
          engine.arena().master(unit).flat(mine.begin - owned.begin, mine.end - owned.begin);
      std::vector<std::byte> coded(static_cast<std::size_t>(param.code->bytes()));
      const std::vector<std::string> together = coded_with(plan.shape.coded, param.name);
      encode_nf4(*param.code, read_together(source, together, held.dtype()), coded,
                 engine.threads());
      Device& device = engine.context().site(RegionKind::kMaster, unit).device;
      copy_to(device.kind() == DeviceKind::kCpu ? nullptr : &device,
              coded.data() + (mine.begin - first) * size_of(held.dtype()), held);
    }
  }
}

/// Draws what the weights do not hold, and reads the rest. Returns what of them was left out.
std::string read_weights(const ModelSpec& model,
                         const std::filesystem::path& path,
                         Engine& engine) {
  ModelSpec held = model;
  held.scores = held.scores && holds_scores(path);
  const bool draws_head = model.scores && !held.scores;
  const auto is_drawn = [&](const std::string& tensor) {
    return is_adapter(tensor) || (draws_head && tensor == "head.weight");
  };
  engine.draw_parameters([&](const ParamDecl& param) { return is_drawn(param.name); });
  const std::unique_ptr<TensorSource> source = open_weights_of(held, path);
  for (const CheckpointTensor& parameter : parameter_tensors(engine)) {
    if (is_drawn(parameter.piece.tensor)) continue;
    read_parameter(*source, parameter);
  }
  read_coded(*source, engine);
  return source->left_out();
}

}  // namespace

void start_from_weights(const Config& config, Engine& engine) {
  Outcome mine;
  std::string left_out;
  try {
    if (config.quantization.in_4_bits && !stay_in_place(config.initial_weights)) {
      throw ConfigError(fmt::format(
          "model.initial_weights: {} is a run's, whose older checkpoints are removed, and the "
          "checkpoints of this run do not hold its weights: write them to a folder of their own "
          "(dstrain convert-checkpoint --from {} --to FOLDER --format huggingface), and name that",
          config.initial_weights, config.initial_weights));
    }
    left_out = read_weights(config.model, config.initial_weights, engine);
  } catch (const ConfigError& error) {
    mine = {kWrongConfig, error.what()};
  } catch (const CheckpointError& error) {
    mine = {kUnusable, error.what()};
  }
  // A rank that gave up alone would leave the others to report that it was lost.
  const Outcome failure = first_failure(std::move(mine), engine.world());
  if (failure.code == kWrongConfig) {
    throw ConfigError(failure.text);
  }
  if (failure.code == kUnusable) {
    throw CheckpointError(failure.text);
  }
  engine.refresh_parameters();
  if (engine.world().rank() == 0) {
    spdlog::info("starting from the weights in {}{}", config.initial_weights,
                 left_out.empty() ? "" : fmt::format(", without {}", left_out));
  }
}

void read_base(const Config& config,
               const BaseWeights& base,
               const std::filesystem::path& checkpoint,
               Engine& engine) {
  const std::filesystem::path path =
      find_base(base, checkpoint, config.initial_weights, "model.initial_weights");
  static_cast<void>(read_weights(config.model, path, engine));
}

}  // namespace dstrain
