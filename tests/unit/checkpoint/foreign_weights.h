// What tests of foreign formats share: whole tensors out of a source, and a source made from a
// formula.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/model_tensors.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/tensor_source.h"

namespace dstrain::checkpoint_test {

using Weights = std::map<std::string, std::vector<float>>;

inline std::vector<float> read_whole(const TensorSource& source,
                                     const ModelTensor& tensor,
                                     const std::string& state = "parameter") {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
  source.read(state, piece_of(tensor, {0, tensor.shape.numel()}),
              {values.data(), DType::kF32, Shape{tensor.shape.numel()}});
  return values;
}

inline Weights parameters_of(const TensorSource& source) {
  Weights weights;
  for (const TensorSource::Entry& entry : source.entries()) {
    if (entry.state == "parameter") {
      weights.emplace(entry.tensor, read_whole(source, {entry.tensor, entry.shape}));
    }
  }
  return weights;
}

/// Every tensor of a file of F32.
inline Weights weights_in_file(const std::filesystem::path& path) {
  Weights weights;
  const SafetensorsFile file(path);
  for (const auto& [name, entry] : file.tensors()) {
    const auto bytes = file.data(entry);
    std::vector<float>& values = weights[name];
    values.resize(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return weights;
}

/// All tensors of all files in a folder, as they lie there: dtype, shape and bytes.
inline std::map<std::string, std::string> raw_tensors(const std::filesystem::path& folder) {
  std::map<std::string, std::string> tensors;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string file_name = file.path().filename().string();
    if (!file_name.starts_with("model") || file.path().extension() != ".safetensors") {
      continue;
    }
    const SafetensorsFile opened(file.path());
    for (const auto& [name, entry] : opened.tensors()) {
      std::string text = entry.dtype;
      for (const std::int64_t extent : entry.shape) {
        text += " " + std::to_string(extent);
      }
      const auto bytes = opened.data(entry);
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      CHECK(tensors.emplace(name, text).second);
    }
  }
  return tensors;
}

}  // namespace dstrain::checkpoint_test
