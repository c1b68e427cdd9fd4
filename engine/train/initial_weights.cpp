#include "engine/train/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
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
#include "engine/config/arch/tensor_list.h"
#include "engine/config/config_error.h"
#include "engine/model/code_weights.h"
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

/// Where a source has a parameter; nullptr: it has none.
const TensorSource::Entry* find_parameter(const TensorSource& source, const std::string& tensor) {
  const auto entries = source.entries();
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
    return entry.state == kParameterState && entry.tensor == tensor;
  });
  return found == entries.end() ? nullptr : &*found;
}

/// Rows of a matrix, rounded to the compute dtype.
std::vector<float> read_rows(const TensorSource& source,
                             const TensorSource::Entry& matrix,
                             const Range& rows,
                             DType compute) {
  const std::int64_t columns = matrix.shape[1];
  const Range all{rows.begin * columns, rows.end * columns};
  std::vector<std::byte> rounded(static_cast<std::size_t>(all.size() * size_of(compute)));
  source.read(kParameterState, piece_of({matrix.tensor, matrix.shape}, all),
              {rounded.data(), compute, Shape{all.size()}});
  std::vector<float> values(static_cast<std::size_t>(all.size()));
  convert_elements(rounded.data(), compute, reinterpret_cast<std::byte*>(values.data()),
                   DType::kF32, all.size());
  return values;
}

/// Matrices that are coded together, all of their rows.
struct Stack {
  std::vector<float> values;
  std::int64_t first_row = 0;  ///< of the one that was asked for
};

/// Those that are coded together with a matrix, rounded to the compute dtype.
Stack read_stack(const TensorSource& source,
                 const RunPlan& plan,
                 const std::string& weight,
                 DType compute) {
  Stack stack;
  std::int64_t rows = 0;
  for (const std::string& tensor : plan.shape.coded_together(weight)) {
    if (tensor == weight) stack.first_row = rows;
    const TensorSource::Entry* const entry = find_parameter(source, tensor);
    if (entry == nullptr) continue;  // of other blocks
    const std::vector<float> values = read_rows(source, *entry, {0, entry->shape[0]}, compute);
    stack.values.insert(stack.values.end(), values.begin(), values.end());
    rows += entry->shape[0];
  }
  return stack;
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
      std::vector<std::byte> coded(static_cast<std::size_t>(bytes_of(*param.code)));
      code_weights(*param.code, read_stack(source, plan, param.name, held.dtype()).values, coded,
                   engine.threads());
      Device& device = engine.context().site(RegionKind::kMaster, unit).device;
      copy_to(device.kind() == DeviceKind::kCpu ? nullptr : &device,
              coded.data() + (mine.begin - first) * size_of(held.dtype()), held);
    }
  }
}

/// Rows of a matrix as the run computes with them: rounded, or coded and decoded.
std::vector<float> rows_as_computed(const TensorSource& source,
                                    const Engine& engine,
                                    const std::string& weight,
                                    const Range& rows) {
  const RunPlan& plan = engine.plan();
  const TensorSource::Entry* const matrix = find_parameter(source, weight);
  check(matrix != nullptr, "no {} to have rows of", weight);
  if (plan.shape.coded_together(weight).empty()) {
    return read_rows(source, *matrix, rows, plan.shape.compute);
  }
  const Stack stack = read_stack(source, plan, weight, plan.shape.compute);
  const std::int64_t columns = matrix->shape[1];
  const auto code_of = [&]<typename Code>(Code /*kind*/) {
    return WeightCode(Code{.rows = rows.size(),
                           .columns = columns,
                           .first_row = stack.first_row + rows.begin,
                           .all_rows = std::ssize(stack.values) / columns,
                           .all_columns = columns});
  };
  const WeightCode code = plan.shape.codes_in_8_bits ? code_of(Int8Code{}) : code_of(Nf4Code{});
  std::vector<std::byte> coded(static_cast<std::size_t>(bytes_of(code)));
  code_weights(code, stack.values, coded, engine.threads());
  return decoded_weights(code, coded);
}

/// Sets the magnitudes of rows to the lengths of the rows that adapters stand beside.
void measure_rows(const TensorSource& source, Engine& engine) {
  for (const CheckpointTensor& magnitude : parameter_tensors(engine)) {
    const std::string& name = magnitude.piece.tensor;
    if (!name.ends_with(kAdapterMagnitude)) continue;
    const std::string weight = name.substr(0, name.size() - kAdapterMagnitude.size()) + ".weight";
    const std::int64_t first = magnitude.piece.box_start[0];
    const Range rows{first + magnitude.piece.flat.begin, first + magnitude.piece.flat.end};
    if (rows.size() == 0) continue;
    const std::vector<float> values = rows_as_computed(source, engine, weight, rows);
    const std::int64_t columns = std::ssize(values) / rows.size();
    std::vector<float> lengths;
    for (auto row = values.begin(); row != values.end(); row += columns) {
      const double squares = std::inner_product(
          row, row + columns, row, 0.0, std::plus<>(),
          [](float x, float y) { return static_cast<double>(x) * static_cast<double>(y); });
      lengths.push_back(static_cast<float>(std::sqrt(squares)));
    }
    const Tensor to = magnitude.data;
    std::vector<std::byte> rounded(static_cast<std::size_t>(to.bytes()));
    convert_elements(reinterpret_cast<const std::byte*>(lengths.data()), DType::kF32,
                     rounded.data(), to.dtype(), to.numel());
    copy_to(magnitude.device, rounded.data(), to);
  }
}

/// What becomes of adapters: they begin anew, or are read later.
enum class Adapters : std::uint8_t { kBegin, kReadLater };

/// Draws what the weights do not hold, and reads the rest. Returns what of them was left out.
std::string read_weights(const ModelSpec& model,
                         const std::filesystem::path& path,
                         Adapters adapters,
                         Engine& engine) {
  const ModelSpec held = with_heads_in(path, model);
  const bool draws_head = model.scores && !held.scores;
  const bool draws_values = model.values && !held.values;
  const auto is_drawn = [&](const std::string& tensor) {
    return is_adapter(tensor) || (draws_head && tensor == "head.weight") ||
           (draws_values && tensor == kValueHead);
  };
  engine.draw_parameters([&](const ParamDecl& param) { return is_drawn(param.name); });
  const std::unique_ptr<TensorSource> source = open_weights_of(held, path);
  for (const CheckpointTensor& parameter : parameter_tensors(engine)) {
    if (is_drawn(parameter.piece.tensor)) continue;
    read_parameter(*source, parameter);
  }
  read_coded(*source, engine);
  if (adapters == Adapters::kBegin) measure_rows(*source, engine);
  return source->left_out();
}

}  // namespace

void start_from_weights(const Config& config, Engine& engine) {
  Outcome mine;
  std::string left_out;
  try {
    const bool reads_again = config.quantization.enabled() || !engine.plan().reference.empty();
    if (reads_again && !stay_in_place(config.initial_weights)) {
      throw ConfigError(fmt::format(
          "model.initial_weights: {} is a run's, whose older checkpoints are removed, and a resume "
          "of this run needs its weights as they are now: write them to a folder of their own "
          "(dstrain convert-checkpoint --from {} --to FOLDER --format huggingface), and name that",
          config.initial_weights, config.initial_weights));
    }
    left_out = read_weights(config.model, config.initial_weights, Adapters::kBegin, engine);
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
  static_cast<void>(read_weights(config.model, path, Adapters::kReadLater, engine));
}

}  // namespace dstrain
