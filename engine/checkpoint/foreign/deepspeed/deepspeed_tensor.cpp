#include "engine/checkpoint/foreign/deepspeed/deepspeed_tensor.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "kernels/core/check.h"

namespace dstrain {

std::string_view name_of(StoredState state) {
  switch (state) {
    case StoredState::kFp32:
      return "fp32";
    case StoredState::kExpAvg:
      return "exp_avg";
    case StoredState::kExpAvgSq:
      return "exp_avg_sq";
  }
  return "?";
}

std::int64_t DeepSpeedTensor::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

std::size_t StoredValues::add(const TorchFile& file, TorchTensor tensor) {
  sources_.push_back({&file, std::move(tensor)});
  return sources_.size() - 1;
}

void StoredValues::read(const DeepSpeedTensor& tensor,
                        StoredState state,
                        std::int64_t first,
                        std::span<float> out) const {
  const auto& parts = tensor.parts[static_cast<std::size_t>(state)];
  const auto count = static_cast<std::int64_t>(out.size());
  check(parts.has_value(), "a tensor without {}", name_of(state));
  check(first >= 0 && count <= tensor.num_elements() - first,
        "elements [{}, {} + {}) of a tensor with {}", first, first, count, tensor.num_elements());
  std::int64_t begin = 0;  // of the part, within the tensor
  for (const StoredPart& part : *parts) {
    const std::int64_t from = std::max(begin, first);
    const std::int64_t to = std::min(begin + part.elements, first + count);
    if (from < to) {
      const Source& source = sources_[part.source];
      try {
        read_floats(source.tensor, source.file->storage(source.tensor), part.first + from - begin,
                    out.subspan(static_cast<std::size_t>(from - first),
                                static_cast<std::size_t>(to - from)));
      } catch (const CheckpointError& error) {
        throw CheckpointError(
            fmt::format("{}: a tensor cannot be read: {}", source.file->path(), error.what()));
      }
    }
    begin += part.elements;
  }
}

}  // namespace dstrain
