#include "engine/model/layer_shape.h"

#include <algorithm>
#include <utility>

namespace dstrain {
namespace {

bool is_kept(Origin origin, RecomputeGranularity granularity) {
  switch (granularity) {
    case RecomputeGranularity::kNone:
      return true;
    case RecomputeGranularity::kSelective:
      return origin != Origin::kRowwise;
    case RecomputeGranularity::kFull:
      return origin == Origin::kInput;
  }
  return true;
}

/// Rows [first, first + rows) of a matrix or of a vector.
TensorShare rows_of(const TensorDecl& tensor, std::int64_t first, std::int64_t rows) {
  return tensor.shape.rank() == 1
             ? TensorShare{.start = {first}, .extent = {rows}}
             : TensorShare{.start = {first, 0}, .extent = {rows, tensor.shape[1]}};
}

}  // namespace

TensorShare TensorShape::share_of(const TensorDecl& tensor) const {
  if (streams > 1) {
    return {.copies = streams, .copy = stream, .partial_gradient = true};
  }
  switch (tensor.cut) {
    case Cut::kWhole: {
      const bool is_part =
          tensor.gradient_of_copy == GradientOfCopy::kOfMyShare ||
          (tensor.gradient_of_copy == GradientOfCopy::kOfMyTokens && sequence_parallel);
      return {.copies = ranks, .copy = rank, .partial_gradient = is_part && ranks > 1};
    }
    case Cut::kColumns: {
      const std::int64_t columns = tensor.shape[1] / ranks;
      return {.start = {0, rank * columns}, .extent = {tensor.shape[0], columns}};
    }
    case Cut::kRows: {
      const int copies = copies_of_heads(tensor.heads);
      const std::int64_t rows = tensor.shape[0] * copies / ranks;
      TensorShare share = rows_of(tensor, rank / copies * rows, rows);
      share.copies = copies;
      share.copy = rank % copies;
      share.partial_gradient = copies > 1;
      return share;
    }
    case Cut::kVocabulary: {
      const std::int64_t rows = vocabulary_rows(tensor.shape[0], ranks);
      return rows_of(tensor, rank * rows, rows);
    }
  }
  return {};
}

int TensorShape::copies_of_heads(std::int64_t heads) const {
  return heads == 0 ? 1 : static_cast<int>(std::max<std::int64_t>(1, ranks / heads));
}

std::int64_t LayerShape::tile_tokens(std::int64_t most) const {
  const std::int64_t planned = planned_tokens();
  const std::int64_t tiles = (planned + most - 1) / most;
  return std::min((planned + tiles - 1) / tiles, tokens());
}

LayerShape LayerShape::of_own_tokens() const {
  check(tensor.sequence_parallel && tokens() % tensor.ranks == 0,
        "{} ranks without tokens of their own", tensor.ranks);
  LayerShape own = *this;
  own.tensor = {.streams = tensor.ranks, .stream = tensor.rank};
  return own;
}

const TensorDecl& LayerShape::tensor_named(const std::string& name) const {
  const TensorDecl* found = find_tensor(tensors, name);
  check(found != nullptr, "the architecture has no tensor {}", name);
  return *found;
}

// Rows have scales of their own in 8 bits, and share them in 4.
std::vector<std::string> LayerShape::coded_together(const std::string& weight) const {
  std::vector<std::string> matrices = coded_with(coded, weight);
  return codes_in_8_bits && !matrices.empty() ? std::vector{weight} : matrices;
}

ParamDecl LayerShape::param(const TensorDecl& of) const {
  ParamDecl param{.name = of.name,
                  .shape = of.shape,
                  .init = of.deviation > 0.0F ? (of.adapter ? Init::kUniform : Init::kNormal)
                          : of.mean == 1.0F   ? Init::kOnes
                                              : Init::kZeros,
                  .deviation = of.deviation,
                  .decays = of.decays,
                  .hidden_matrix = of.hidden_matrix,
                  .trained = trains(of),
                  .rate_scale = rates.of(of.name, static_cast<std::int64_t>(model.layers.size())),
                  .share = tensor.share_of(of)};
  if (const std::vector<std::string> stack = coded_together(of.name); !stack.empty()) {
    const Shape& part = param.local_shape();
    const Shape start = param.box_start();
    std::int64_t first_row = start[0];
    std::int64_t all_rows = 0;
    for (const std::string& name : stack) {
      if (name == of.name) first_row += all_rows;
      const TensorDecl* const other = find_tensor(tensors, name);
      all_rows += other == nullptr ? 0 : other->shape[0];
    }
    const auto code = [&]<typename Code>(Code /*kind*/) {
      return WeightCode(Code{.rows = part[0],
                             .columns = part[1],
                             .first_row = first_row,
                             .first_column = start[1],
                             .all_rows = all_rows,
                             .all_columns = of.shape[1]});
    };
    param.code = codes_in_8_bits ? code(Int8Code{}) : code(Nf4Code{});
    param.code_elements = bytes_of(*param.code) / size_of(compute);
  }
  return param;
}

BufferRef LayerShape::add_activation(Blueprint& blueprint,
                                     const std::string& of_layer,
                                     const std::string& what,
                                     Shape shape,
                                     DType dtype,
                                     Origin origin,
                                     LayerKind kind) const {
  const bool is_apart = origin == Origin::kInput && keeps_input_apart();
  if (!extends_cache() && !is_apart && is_kept(origin, recompute)) {
    return blueprint.add_buffer({of_layer + "/" + what, shape, dtype, Lifetime::kSaved, kind});
  }
  if (origin == Origin::kHandedOn && together) {
    return handed_on_stream;
  }
  const std::string within_block = of_layer.substr(of_layer.rfind('.') + 1);
  return blueprint.add_buffer({within_block + "/" + what, shape, dtype, Lifetime::kScratch, kind});
}

BufferRef LayerShape::add_handed_on(Blueprint& blueprint, BufferDecl scratch) const {
  if (!together) {
    return blueprint.add_buffer(std::move(scratch));
  }
  const BufferDecl& kept = blueprint.buffers().at(static_cast<std::size_t>(handed_on.index));
  check(kept.shape == scratch.shape, "a block hands on {} numbers where the stage keeps {}",
        scratch.shape.numel(), kept.shape.numel());
  return handed_on;
}

BufferRef LayerShape::add_backward_buffer(Blueprint& blueprint, BufferDecl buffer) const {
  return extends_cache() ? BufferRef{} : blueprint.add_backward_buffer(std::move(buffer));
}

}  // namespace dstrain
