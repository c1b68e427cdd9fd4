#include "engine/checkpoint/foreign/deepspeed/deepspeed_source.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/huggingface/names.h"
#include "engine/config/config_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Wrappers around the model put these in front of every name.
constexpr std::array<std::string_view, 5> kWrappers = {"", "module.", "model.", "_orig_mod.",
                                                       "module._orig_mod."};

constexpr std::array<std::pair<const char*, StoredState>, 3> kStates = {
    {{"parameter", StoredState::kFp32},
     {"exp_avg", StoredState::kExpAvg},
     {"exp_avg_sq", StoredState::kExpAvgSq}}};

StoredState state_named(const std::string& name) {
  for (const auto& [ours, theirs] : kStates) {
    if (name == ours) return theirs;
  }
  throw CheckpointError(fmt::format("DeepSpeed's checkpoints hold no {}", name));
}

/// The dimension along which `whole` is cut into `count` slices of a given shape; -1 if each slice
/// is whole.
std::optional<int> cut_dim_of(std::span<const std::int64_t> slice,
                              const Shape& whole,
                              std::int64_t count) {
  if (static_cast<int>(slice.size()) != whole.rank()) return std::nullopt;
  std::optional<int> cut;
  for (int dim = 0; dim < whole.rank(); ++dim) {
    const std::int64_t extent = slice[static_cast<std::size_t>(dim)];
    if (extent == whole[dim]) continue;
    if (extent * count != whole[dim] || cut) return std::nullopt;
    cut = dim;
  }
  return cut.value_or(-1);
}

}  // namespace

DeepSpeedSource::DeepSpeedSource(const fs::path& folder, const ModelSpec& model)
    : checkpoint_(folder) {
  match(model);
}

void DeepSpeedSource::match(const ModelSpec& model) {
  const DeepSpeedTensors& first = checkpoint_.tensors(0);
  const auto holds = [&](const std::string& name) {
    return std::any_of(kWrappers.begin(), kWrappers.end(),
                       [&](auto prefix) { return first.contains(std::string(prefix) + name); });
  };
  const std::vector<ForeignTensor> tensors = huggingface_tensors(model, holds);
  const auto wrapper = std::find_if(kWrappers.begin(), kWrappers.end(), [&](auto prefix) {
    return first.contains(stored_name(tensors.front(), prefix));
  });
  if (wrapper == kWrappers.end()) {
    throw CheckpointError(fmt::format(
        "{} holds no \"{}\", which a {} has; it holds \"{}\" and {} more",
        checkpoint_.folder().string(), tensors.front().name, model.model_type,
        first.empty() ? "" : first.begin()->first, first.empty() ? 0 : first.size() - 1));
  }
  std::set<std::string> left;
  for (const auto& [name, tensor] : first) {
    if (tensor.role != StoredRole::kBuffer && tensor.shared_with.empty()) left.insert(name);
  }
  stored_.reserve(tensors.size());  // parts point into it
  for (const ForeignTensor& tensor : tensors) {
    const std::string name = stored_name(tensor, *wrapper);
    stored_.push_back(find(tensor, name));
    left.erase(name);
    add(stored_.back());
  }
  // A tied head may be listed as a parameter of its own, the same memory under another name.
  if (model.tied_embeddings) left.erase(std::string(*wrapper) + huggingface_head(model));
  std::erase_if(left, [](const std::string& name) { return is_huggingface_buffer(name); });
  if (!left.empty()) {
    throw CheckpointError(fmt::format(
        "{} holds \"{}\"{}, which a {} of this config.json lacks", checkpoint_.folder().string(),
        *left.begin(), left.size() == 1 ? "" : fmt::format(" and {} more", left.size() - 1),
        model.model_type));
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.tensor, a.state) < std::tie(b.tensor, b.state);
  });
}

/// Shared tensors are listed under the first of their names: a tied table may be "lm_head.weight".
std::string DeepSpeedSource::stored_name(const ForeignTensor& tensor,
                                         std::string_view prefix) const {
  const DeepSpeedTensors& stored = checkpoint_.tensors(0);
  std::string name = std::string(prefix) + tensor.name;
  for (auto found = stored.find(name); found != stored.end() && !found->second.shared_with.empty();
       found = stored.find(name)) {
    name = found->second.shared_with;
  }
  return name;
}

DeepSpeedSource::Stored DeepSpeedSource::find(const ForeignTensor& tensor,
                                              const std::string& name) const {
  const std::string where = checkpoint_.folder().string();
  Stored stored{.tensor = tensor, .slices = {}, .cut_dim = 0};
  const int ranks = checkpoint_.is_universal() ? 1 : checkpoint_.num_mp_ranks();
  for (int rank = 0; rank < ranks; ++rank) {
    const DeepSpeedTensors& of_rank = checkpoint_.tensors(rank);
    const auto found = of_rank.find(name);
    if (found == of_rank.end()) {
      throw CheckpointError(
          fmt::format("{} holds no \"{}\" of model-parallel rank {}", where, name, rank));
    }
    stored.slices.push_back(&found->second);
  }
  const std::vector<std::int64_t>& shape = stored.slices.front()->shape;
  const std::optional<int> cut = cut_dim_of(shape, tensor.shape, ranks);
  const bool equal =
      std::all_of(stored.slices.begin(), stored.slices.end(),
                  [&](const DeepSpeedTensor* slice) { return slice->shape == shape; });
  if (!cut || !equal) {
    throw CheckpointError(fmt::format("{}: \"{}\" has shape [{}]{}, its config.json's model has {}",
                                      where, name, fmt::join(shape, ", "),
                                      ranks > 1 ? fmt::format(" on each of {} ranks", ranks) : "",
                                      tensor.shape.to_string()));
  }
  if (*cut < 0) {
    stored.slices.resize(1);  // every rank has all of it
  } else if (tensor.parts.size() > 1 && stored.slices.size() > 1) {
    throw CheckpointError(
        fmt::format("{}: \"{}\" is query, key and value in one, cut over {} ranks; whether each "
                    "rank's slice has "
                    "a share of all three, the checkpoint does not say",
                    where, name, ranks));
  }
  stored.cut_dim = std::max(*cut, 0);
  return stored;
}

void DeepSpeedSource::add(const Stored& stored) {
  for (std::size_t i = 0; i < stored.tensor.parts.size(); ++i) {
    const ModelTensor& part = stored.tensor.parts[i];
    parts_.emplace(part.name, Part{.stored = &stored, .index = i});
    for (const auto& [name, state] : kStates) {
      const bool everywhere =
          std::all_of(stored.slices.begin(), stored.slices.end(),
                      [state = state](const DeepSpeedTensor* slice) { return slice->has(state); });
      if (everywhere) {
        entries_.push_back(
            {.tensor = part.name, .state = name, .shape = part.shape, .dtype = DType::kF32});
      }
    }
  }
}

void DeepSpeedSource::read_run(const Stored& stored,
                               StoredState state,
                               std::int64_t first,
                               std::span<float> out) const {
  const auto count = static_cast<std::int64_t>(stored.slices.size());
  if (count == 1) {
    return checkpoint_.read(*stored.slices.front(), state, first, out);
  }
  // Slices of dim 0 follow each other; those of dim 1 take turns within every row.
  const Shape& whole = stored.tensor.shape;
  const std::int64_t turn = stored.cut_dim == 0 ? whole.numel() / count : whole[1] / count;
  for (std::int64_t at = first; !out.empty();) {
    const std::int64_t index = at / turn;
    const std::int64_t within = at % turn;
    const std::int64_t elements = std::min<std::int64_t>(turn - within, std::ssize(out));
    const std::int64_t rank = index % count;
    checkpoint_.read(*stored.slices[static_cast<std::size_t>(rank)], state,
                     index / count * turn + within, out.first(static_cast<std::size_t>(elements)));
    out = out.subspan(static_cast<std::size_t>(elements));
    at += elements;
  }
}

void DeepSpeedSource::read(const std::string& state, const Piece& piece, Tensor out) const {
  const auto found = parts_.find(piece.tensor);
  if (found == parts_.end()) {
    throw CheckpointError(fmt::format("{} holds no {} of \"{}\"", checkpoint_.folder().string(),
                                      state, piece.tensor));
  }
  const Stored& stored = *found->second.stored;
  const ModelTensor& part = stored.tensor.parts[found->second.index];
  if (piece.shape != part.shape) {
    throw CheckpointError(fmt::format("{}: \"{}\" has shape {}, expected {}",
                                      checkpoint_.folder().string(), piece.tensor,
                                      part.shape.to_string(), piece.shape.to_string()));
  }
  const StoredState stored_state = state_named(state);
  if (!stored.slices.front()->has(stored_state)) {
    throw CheckpointError(fmt::format("{} holds no {} of \"{}\"", checkpoint_.folder().string(),
                                      state, piece.tensor));
  }
  const PartPlace place = place_in(stored.tensor, found->second.index);
  std::vector<float> values(static_cast<std::size_t>(piece.flat.size()));
  std::vector<float> one_column;
  float* to = values.data();
  for (const auto& [row, column, rows, columns] : rectangles_of(piece)) {
    const bool by_columns = place.column_stride > 1;
    if (place.run > 0) {
      float* begin_of_row = to;
      for (std::int64_t i = row; i < row + rows; ++i) {
        for_each_run(place, i * place.row_stride + column, columns,
                     [&](std::int64_t begin, std::int64_t size) {
                       read_run(stored, stored_state, place.origin + begin,
                                {begin_of_row, static_cast<std::size_t>(size)});
                       begin_of_row += size;
                     });
      }
    } else if (!by_columns && column == 0 && columns == place.row_stride) {  // whole rows: one run
      read_run(stored, stored_state, place.origin + row * place.row_stride,
               {to, static_cast<std::size_t>(rows * columns)});
    } else if (!by_columns) {
      for (std::int64_t i = 0; i < rows; ++i) {
        read_run(stored, stored_state, place.origin + (row + i) * place.row_stride + column,
                 {to + i * columns, static_cast<std::size_t>(columns)});
      }
    } else {
      one_column.resize(static_cast<std::size_t>(rows));
      for (std::int64_t i = 0; i < columns; ++i) {
        read_run(stored, stored_state, place.origin + row + (column + i) * place.column_stride,
                 one_column);
        for (std::int64_t k = 0; k < rows; ++k) {
          to[k * columns + i] = one_column[static_cast<std::size_t>(k)];
        }
      }
    }
    to += rows * columns;
  }
  convert_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kF32,
                   static_cast<std::byte*>(out.data()), out.dtype(), piece.flat.size());
}

TrainingState DeepSpeedSource::training() const {
  const RunProgress& progress = checkpoint_.progress();
  TrainingState training;
  training.step = progress.global_steps;
  training.consumed_samples = progress.global_samples;
  training.skipped_steps = progress.skipped_steps;
  training.scheduler_step =
      progress.scheduler_step.value_or(progress.global_steps - progress.skipped_steps);
  training.optimizer_step = checkpoint_.optimizer_step().value_or(0);
  if (const auto& scale = checkpoint_.loss_scale()) {
    training.loss_scale = scale->scale;
    training.scaler_iteration = scale->iteration;
    training.last_overflow = scale->last_overflow;
    training.hysteresis = scale->hysteresis;
  }
  return training;
}

fs::path model_beside(const fs::path& step_folder) {
  std::error_code error;
  for (const fs::path& folder : {step_folder, step_folder.parent_path()}) {
    if (fs::exists(folder / "config.json", error)) return folder / "config.json";
  }
  throw ConfigError(
      fmt::format("{}: is a DeepSpeed checkpoint, which does not say which model it is of: put the "
                  "model's config.json "
                  "beside it, or name it with --model",
                  step_folder.string()));
}

}  // namespace dstrain
