// DeepSpeedTensor: a parameter whose values lie in pieces, in the files of many ranks. StoredValues
// holds the tensors that the pieces are cut from, and reads any range of a parameter through them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/foreign/pytorch/torch_file.h"

namespace dstrain {

enum class StoredState { kFp32, kExpAvg, kExpAvgSq };
inline constexpr std::array kStoredStates = {StoredState::kFp32, StoredState::kExpAvg,
                                             StoredState::kExpAvgSq};
/// DeepSpeed's name of it: "fp32", "exp_avg", "exp_avg_sq".
std::string_view name_of(StoredState state);

enum class StoredRole { kTrained, kFrozen, kBuffer };

/// A range of one tensor of one file.
struct StoredPart {
  std::size_t source = 0;  ///< StoredValues::add gave it
  std::int64_t first = 0;  ///< element
  std::int64_t elements = 0;
};

struct DeepSpeedTensor {
  std::vector<std::int64_t> shape;
  StoredRole role = StoredRole::kTrained;
  std::string_view dtype;   ///< of the values as stored, by safetensors's name: "F32", "BF16", …
  std::string shared_with;  ///< the tensor that it is another name of; "" if none
  /// Indexed by StoredState; nothing where the checkpoint has no such values.
  std::array<std::optional<std::vector<StoredPart>>, kStoredStates.size()> parts;

  [[nodiscard]] std::int64_t num_elements() const;
  [[nodiscard]] bool has(StoredState state) const {
    return parts[static_cast<std::size_t>(state)].has_value();
  }
};

class StoredValues {
 public:
  /// Adds a tensor of a file that lives as long as this, and returns its number.
  std::size_t add(const TorchFile& file, TorchTensor tensor);
  [[nodiscard]] const TorchTensor& tensor(std::size_t source) const {
    return sources_[source].tensor;
  }

  /// Reads elements [first, first + out.size()) of a tensor that has the state.
  void read(const DeepSpeedTensor& tensor,
            StoredState state,
            std::int64_t first,
            std::span<float> out) const;

 private:
  struct Source {
    const TorchFile* file;
    TorchTensor tensor;
  };
  std::vector<Source> sources_;
};

}  // namespace dstrain
