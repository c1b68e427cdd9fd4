// Writes weights as Hugging Face's files: which tensors go into which file, and one such file.
// Tensor by tensor, a few MiB at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/foreign/huggingface/names.h"
#include "engine/checkpoint/written_file.h"

namespace dstrain {

struct HuggingFaceTensor {
  ForeignTensor tensor;
  DType dtype = DType::kF32;
  [[nodiscard]] std::int64_t bytes() const { return tensor.shape.numel() * size_of(dtype); }
};

/// One file.
struct HuggingFaceShard {
  std::string name;  ///< "model.safetensors" or "model-00001-of-00003.safetensors"
  std::vector<HuggingFaceTensor> tensors;
};

/// The model's tensors, each in `dtype` or else as the source has it, over files of at most
/// `max_shard_bytes` of tensors; a larger tensor is alone in its file. 0: one file.
std::vector<HuggingFaceShard> huggingface_shards(const ModelSpec& model,
                                                 const TensorSource& source,
                                                 std::optional<DType> dtype,
                                                 std::int64_t max_shard_bytes);

WrittenFile write_huggingface_shard(const DurableFiles& files,
                                    const std::filesystem::path& path,
                                    const HuggingFaceShard& shard,
                                    const TensorSource& source,
                                    const ByteProgress& progress);

/// model.safetensors.index.json of several shards.
std::string huggingface_index(const std::vector<HuggingFaceShard>& shards);

}  // namespace dstrain
