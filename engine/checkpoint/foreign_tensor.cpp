#include "engine/checkpoint/foreign_tensor.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// Outputs of a part: rows of a matrix, elements of a vector.
std::int64_t outputs_of(const ModelTensor& part) {
  return part.shape[0];
}

std::span<const std::byte> bytes_of(const std::vector<std::byte>& buffer, std::int64_t bytes) {
  return {buffer.data(), static_cast<std::size_t>(bytes)};
}

void stream_rows(const TensorSource& source,
                 const ForeignTensor& tensor,
                 DType dtype,
                 const ByteSink& sink) {
  std::vector<std::byte> buffer;
  std::int64_t given = 0;
  for (const ModelTensor& part : tensor.parts) {
    const std::int64_t numel = part.shape.numel();
    for (std::int64_t begin = 0; begin < numel; begin += kChunkElements) {
      const std::int64_t count = std::min(kChunkElements, numel - begin);
      buffer.resize(static_cast<std::size_t>(count * size_of(dtype)));
      source.read("parameter", piece_of(part, {begin, begin + count}),
                  {buffer.data(), dtype, Shape{count}});
      sink(buffer);
    }
    given += numel;
  }
  std::int64_t padding = tensor.shape.numel() - given;
  check(padding >= 0, "\"{}\" of shape {} has no room for its {} elements", tensor.name,
        tensor.shape.to_string(), given);
  for (; padding > 0; padding -= std::min(kChunkElements, padding)) {
    const std::int64_t count = std::min(kChunkElements, padding);
    buffer.assign(static_cast<std::size_t>(count * size_of(dtype)), std::byte{0});
    sink(buffer);
  }
}

/// Streams vectors element by element: the first of each part, then the second of each.
void stream_elements(const TensorSource& source,
                     const ForeignTensor& tensor,
                     DType dtype,
                     const ByteSink& sink) {
  const std::size_t size = size_of(dtype);
  const std::int64_t numel = tensor.parts.front().shape.numel();
  std::vector<std::byte> part(static_cast<std::size_t>(numel) * size);
  std::vector<std::byte> whole(part.size() * tensor.parts.size());
  for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
    source.read("parameter", piece_of(tensor.parts[i], {0, numel}),
                {part.data(), dtype, Shape{numel}});
    for (std::size_t at = 0; at < static_cast<std::size_t>(numel); ++at) {
      std::copy_n(part.data() + at * size, size,
                  whole.data() + (at * tensor.parts.size() + i) * size);
    }
  }
  sink(whole);
}

/// Streams the tensor head by head: a head's elements of each part, then those of the next head.
void stream_heads(const TensorSource& source,
                  const ForeignTensor& tensor,
                  DType dtype,
                  const ByteSink& sink) {
  const std::int64_t run = tensor.parts.front().shape.numel() / tensor.heads;
  if (run == 1) {
    return stream_elements(source, tensor, dtype, sink);
  }
  std::vector<std::byte> buffer(static_cast<std::size_t>(run * size_of(dtype)));
  for (std::int64_t head = 0; head < tensor.heads; ++head) {
    for (const ModelTensor& part : tensor.parts) {
      source.read("parameter", piece_of(part, {head * run, (head + 1) * run}),
                  {buffer.data(), dtype, Shape{run}});
      sink(buffer);
    }
  }
}

/// Transposes `from` [outputs, inputs] into the columns first, first + step, … of `to`, which is
/// `width` columns wide.
template <typename Element>
void transpose_into(const std::byte* from,
                    std::int64_t outputs,
                    std::int64_t inputs,
                    std::byte* to,
                    std::int64_t first,
                    std::int64_t step,
                    std::int64_t width) {
  constexpr std::int64_t kTile = 64;
  const auto* source = reinterpret_cast<const Element*>(from);
  auto* target = reinterpret_cast<Element*>(to) + first;
  for (std::int64_t output_tile = 0; output_tile < outputs; output_tile += kTile) {
    const std::int64_t output_end = std::min(output_tile + kTile, outputs);
    for (std::int64_t input_tile = 0; input_tile < inputs; input_tile += kTile) {
      const std::int64_t input_end = std::min(input_tile + kTile, inputs);
      for (std::int64_t input = input_tile; input < input_end; ++input) {
        for (std::int64_t output = output_tile; output < output_end; ++output) {
          target[input * width + output * step] = source[output * inputs + input];
        }
      }
    }
  }
}

void stream_transposed(const TensorSource& source,
                       const ForeignTensor& tensor,
                       DType dtype,
                       const ByteSink& sink) {
  const std::int64_t inputs = tensor.shape[0];
  const std::int64_t width = tensor.shape[1];
  const bool by_rows = tensor.heads > 0;
  const std::int64_t step = by_rows ? std::ssize(tensor.parts) : 1;
  const std::int64_t rows = std::clamp<std::int64_t>(kChunkElements / width, 1, inputs);
  std::vector<std::byte> chunk;
  std::vector<std::byte> part_columns;
  for (std::int64_t begin = 0; begin < inputs; begin += rows) {
    const std::int64_t count = std::min(rows, inputs - begin);
    chunk.resize(static_cast<std::size_t>(count * width * size_of(dtype)));
    std::int64_t first = 0;
    std::int64_t columns = 0;
    for (const ModelTensor& part : tensor.parts) {
      const std::int64_t outputs = outputs_of(part);
      part_columns.resize(static_cast<std::size_t>(outputs * count * size_of(dtype)));
      source.read("parameter", columns_of(part, {begin, begin + count}),
                  {part_columns.data(), dtype, Shape{outputs * count}});
      const auto transpose =
          size_of(dtype) == 4 ? transpose_into<std::uint32_t> : transpose_into<std::uint16_t>;
      transpose(part_columns.data(), outputs, count, chunk.data(), first, step, width);
      first += by_rows ? 1 : outputs;
      columns += outputs;
    }
    check(columns == width, "\"{}\" of shape {} is made of {} columns", tensor.name,
          tensor.shape.to_string(), columns);
    sink(bytes_of(chunk, count * width * size_of(dtype)));
  }
}

/// The tensor of one expert by itself.
ForeignTensor of_expert(const ForeignTensor& tensor, std::int64_t expert) {
  ForeignTensor one{.name = tensor.name,
                    .shape = {},
                    .transposed = tensor.transposed,
                    .parts = {},
                    .heads = tensor.heads};
  for (int dim = 1; dim < tensor.shape.rank(); ++dim) {
    one.shape.push_back(tensor.shape[dim]);
  }
  const std::int64_t each = std::ssize(tensor.parts) / tensor.experts;
  const auto first = tensor.parts.begin() + expert * each;
  one.parts.assign(first, first + each);
  return one;
}

}  // namespace

PartPlace place_in(const ForeignTensor& tensor, std::size_t index) {
  if (tensor.experts > 0) {
    const std::size_t each = tensor.parts.size() / static_cast<std::size_t>(tensor.experts);
    const auto expert = static_cast<std::int64_t>(index / each);
    PartPlace place = place_in(of_expert(tensor, expert), index % each);
    place.origin += expert * (tensor.shape.numel() / tensor.experts);
    return place;
  }
  std::int64_t before = 0;  // outputs of the parts in front
  for (std::size_t i = 0; i < index; ++i) {
    before += outputs_of(tensor.parts[i]);
  }
  const Shape& part = tensor.parts.at(index).shape;
  if (tensor.heads > 0 && part.rank() == 2 && tensor.transposed) {
    return {.origin = static_cast<std::int64_t>(index),
            .row_stride = std::ssize(tensor.parts),
            .column_stride = tensor.shape[1]};
  }
  if (tensor.heads > 0) {
    const std::int64_t run = part.numel() / tensor.heads;
    return {.origin = static_cast<std::int64_t>(index) * run,
            .row_stride = part.rank() == 1 ? 1 : part[1],
            .run = run,
            .run_stride = static_cast<std::int64_t>(tensor.parts.size()) * run};
  }
  if (part.rank() == 1) {
    return {.origin = before};
  }
  return tensor.transposed ? PartPlace{.origin = before, .column_stride = tensor.shape[1]}
                           : PartPlace{.origin = before * part[1], .row_stride = part[1]};
}

PlacedTensor place_of_part(const ForeignTensor& tensor,
                           std::size_t index,
                           const std::byte* first,
                           DType dtype) {
  const PartPlace place = place_in(tensor, index);
  return {.first = first + place.origin * size_of(dtype),
          .dtype = dtype,
          .row_stride = place.row_stride,
          .column_stride = place.column_stride,
          .run = place.run,
          .run_stride = place.run_stride};
}

void stream_foreign(const TensorSource& source,
                    const ForeignTensor& tensor,
                    DType dtype,
                    const ByteSink& sink) {
  if (tensor.experts > 0) {
    for (std::int64_t expert = 0; expert < tensor.experts; ++expert) {
      stream_foreign(source, of_expert(tensor, expert), dtype, sink);
    }
  } else if (tensor.transposed) {
    stream_transposed(source, tensor, dtype, sink);
  } else if (tensor.heads > 0) {
    stream_heads(source, tensor, dtype, sink);
  } else {
    stream_rows(source, tensor, dtype, sink);
  }
}

}  // namespace dstrain
