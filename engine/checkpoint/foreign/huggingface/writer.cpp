#include "engine/checkpoint/foreign/huggingface/writer.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/safetensors.h"
#include "engine/config/arch/tensor_list.h"

namespace dstrain {
namespace {

using DTypes = std::map<std::string, DType>;

DTypes dtypes_of(const TensorSource& source) {
  DTypes dtypes;
  for (const TensorSource::Entry& entry : source.entries()) {
    if (entry.state == "parameter") {
      dtypes.emplace(entry.tensor, entry.dtype);
    }
  }
  return dtypes;
}

/// The dtype of the parts; where they differ, one that holds the values of all.
DType common_dtype(const std::vector<ModelTensor>& parts, const DTypes& dtypes) {
  const DType first = dtypes.at(parts.front().name);
  const bool same = std::all_of(parts.begin(), parts.end(), [&](const ModelTensor& part) {
    return dtypes.at(part.name) == first;
  });
  return same ? first : DType::kF32;
}

}  // namespace

std::vector<HuggingFaceShard> huggingface_shards(const ModelSpec& model,
                                                 const TensorSource& source,
                                                 std::optional<DType> dtype,
                                                 std::int64_t max_shard_bytes) {
  const DTypes dtypes = dtypes_of(source);
  std::vector<HuggingFaceShard> shards(1);
  std::int64_t bytes = 0;  // of the last shard
  for (ForeignTensor& foreign : huggingface_tensors(model)) {
    const bool stays_wide = is_balancing_bias(foreign.parts.front().name);
    const DType stored =
        stays_wide ? DType::kF32 : dtype.value_or(common_dtype(foreign.parts, dtypes));
    HuggingFaceTensor tensor{.tensor = std::move(foreign), .dtype = stored};
    if (max_shard_bytes > 0 && bytes > 0 && bytes + tensor.bytes() > max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    // As the safetensors library writes them, so that files go there and back byte for byte.
    std::sort(shards[i].tensors.begin(), shards[i].tensors.end(),
              [](const HuggingFaceTensor& a, const HuggingFaceTensor& b) {
                return std::pair(-size_of(a.dtype), std::string_view(a.tensor.name)) <
                       std::pair(-size_of(b.dtype), std::string_view(b.tensor.name));
              });
  }
  return shards;
}

WrittenFile write_huggingface_shard(const DurableFiles& files,
                                    const std::filesystem::path& path,
                                    const HuggingFaceShard& shard,
                                    const TensorSource& source,
                                    const ByteProgress& progress) {
  std::vector<SafetensorsDecl> declarations;
  for (const HuggingFaceTensor& tensor : shard.tensors) {
    SafetensorsDecl declaration{
        tensor.tensor.name, std::string(weight_dtype_name(tensor.dtype)), {}};
    for (int dim = 0; dim < tensor.tensor.shape.rank(); ++dim) {
      declaration.shape.push_back(tensor.tensor.shape[dim]);
    }
    declarations.push_back(std::move(declaration));
  }
  SafetensorsWriter writer(files, path, declarations, {{"format", "pt"}});
  ByteTally tally(progress);
  tally.add(std::as_bytes(std::span(writer.header())));
  for (const HuggingFaceTensor& tensor : shard.tensors) {
    stream_foreign(source, tensor.tensor, tensor.dtype, [&](std::span<const std::byte> bytes) {
      writer.write_part(bytes);
      tally.add(bytes);
    });
  }
  writer.finish();
  return tally.of(path);
}

std::string huggingface_index(const std::vector<HuggingFaceShard>& shards) {
  std::int64_t total = 0;
  auto map = nlohmann::json::object();  // sorted by tensor
  for (const HuggingFaceShard& shard : shards) {
    for (const HuggingFaceTensor& tensor : shard.tensors) {
      map[tensor.tensor.name] = shard.name;
      total += tensor.bytes();
    }
  }
  return nlohmann::ordered_json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(
             2) +
         "\n";
}

}  // namespace dstrain
