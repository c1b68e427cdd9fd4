#include "engine/train/initial_weights.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/config/arch/adapters.h"
#include "engine/config/config_error.h"
#include "engine/train/training_state.h"

namespace dstrain {
namespace {

// The ways in which a rank's reading can end.
constexpr std::int32_t kWrongConfig = 1;
constexpr std::int32_t kUnusable = 2;

void read_parameter(const TensorSource& source, const CheckpointTensor& parameter) {
  if (parameter.device == nullptr) {
    source.read(parameter.state, parameter.piece, parameter.data);
    return;
  }
  std::vector<std::byte> host(static_cast<std::size_t>(parameter.data.bytes()));
  source.read(parameter.state, parameter.piece,
              {host.data(), parameter.data.dtype(), parameter.data.shape()});
  Stream& stream = parameter.device->compute_stream();
  parameter.device->copy_from_host(host.data(), parameter.data, stream);
  stream.synchronize();
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
  return source->left_out();
}

}  // namespace

void start_from_weights(const Config& config, Engine& engine) {
  Outcome mine;
  std::string left_out;
  try {
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
