#include "engine/checkpoint/foreign/llmc/gpt2_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/regular_file.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::int64_t kHeaderInts = 256;
constexpr std::int64_t kHeaderBytes = kHeaderInts * 4;
constexpr std::int32_t kMagic = 20240326;
constexpr std::int32_t kLlama3Magic = 20240803;
constexpr std::int32_t kF32Version = 3;
constexpr std::int32_t kBF16Version = 5;
constexpr std::int64_t kVocabularyMultiple = 128;

using Header = std::array<std::int32_t, kHeaderInts>;

enum HeaderField : std::size_t {
  kMagicField,
  kVersionField,
  kPositionsField,
  kVocabularyField,
  kLayersField,
  kHeadsField,
  kWidthField,
  kPaddedVocabularyField
};

/// Each row is one of the file's tensors; {} those of all layers, one after the other.
constexpr std::array<std::array<const char*, 3>, 16> kOrder = {{
    {"embedding.token.weight"},
    {"embedding.position.weight"},
    {"blocks.{}.attention_norm.weight"},
    {"blocks.{}.attention_norm.bias"},
    {"blocks.{}.attention.query.weight", "blocks.{}.attention.key.weight",
     "blocks.{}.attention.value.weight"},
    {"blocks.{}.attention.query.bias", "blocks.{}.attention.key.bias",
     "blocks.{}.attention.value.bias"},
    {"blocks.{}.attention.output.weight"},
    {"blocks.{}.attention.output.bias"},
    {"blocks.{}.mlp_norm.weight"},
    {"blocks.{}.mlp_norm.bias"},
    {"blocks.{}.mlp.up.weight"},
    {"blocks.{}.mlp.up.bias"},
    {"blocks.{}.mlp.down.weight"},
    {"blocks.{}.mlp.down.bias"},
    {"final_norm.weight"},
    {"final_norm.bias"},
}};

/// Parts of one inner shape, stacked.
ForeignTensor stacked(std::vector<ModelTensor> parts, std::int64_t padding_rows) {
  std::int64_t rows = padding_rows;
  for (const ModelTensor& part : parts) {
    rows += part.shape[0];
  }
  const ModelTensor& first = parts.front();
  return {.name = first.name,
          .shape = first.shape.rank() == 1 ? Shape{rows} : Shape{rows, first.shape[1]},
          .parts = std::move(parts)};
}

std::vector<ForeignTensor> tensors_of(const ModelSpec& model, std::int64_t padded_vocabulary) {
  std::map<std::string, ModelTensor> ours;
  for (const ModelTensor& tensor : model_tensors(model)) {
    ours.emplace(tensor.name, tensor);
  }
  std::vector<ForeignTensor> tensors;
  for (const auto& row : kOrder) {
    const bool of_blocks = std::string_view(row.front()).find("{}") != std::string_view::npos;
    std::vector<ModelTensor> parts;
    for (std::int64_t block = 0; block < (of_blocks ? model.num_layers : 1); ++block) {
      for (const char* pattern : row) {
        if (pattern != nullptr) {
          parts.push_back(ours.at(fmt::format(fmt::runtime(pattern), block)));
        }
      }
    }
    const std::int64_t padding = tensors.empty() ? padded_vocabulary - model.vocab_size : 0;
    tensors.push_back(stacked(std::move(parts), padding));
  }
  return tensors;
}

/// The model of an llm.c file: its sizes, and what all GPT-2s have in common.
ModelSpec gpt2_of(std::int64_t positions,
                  std::int64_t vocabulary,
                  std::int64_t layers,
                  std::int64_t heads,
                  std::int64_t width,
                  const std::string& where) {
  return parse_model_spec(
      fmt::format(R"({{"model": {{"model_type": "gpt2", "n_positions": {}, "vocab_size": {}, )"
                  R"("n_layer": {}, "n_head": {}, "n_embd": {}}}}})",
                  positions, vocabulary, layers, heads, width),
      where);
}

std::int64_t elements_of(const std::vector<ForeignTensor>& tensors) {
  std::int64_t elements = 0;
  for (const ForeignTensor& tensor : tensors) {
    elements += tensor.shape.numel();
  }
  return elements;
}

Header read_header(const MappedFile& file) {
  Header header{};
  if (file.bytes().size() < static_cast<std::size_t>(kHeaderBytes)) {
    throw CheckpointError(fmt::format("{}: {} bytes are too few for the header of an llm.c model",
                                      file.path(), file.bytes().size()));
  }
  std::memcpy(header.data(), file.bytes().data(), kHeaderBytes);
  if (header[kMagicField] != kMagic ||
      (header[kVersionField] != kF32Version && header[kVersionField] != kBF16Version)) {
    throw CheckpointError(fmt::format(
        "{}: magic {} and version {} are not those of an llm.c GPT-2 model: {}, and {} (f32) or {} "
        "(bf16)",
        file.path(), header[kMagicField], header[kVersionField], kMagic, kF32Version,
        kBF16Version));
  }
  // Far above any model, and small enough that no product of them overflows.
  constexpr std::int32_t kLargest = 1 << 24;
  const bool sane = std::all_of(&header[kPositionsField], &header[kPaddedVocabularyField] + 1,
                                [](std::int32_t size) { return size > 0 && size <= kLargest; }) &&
                    header[kLayersField] <= 1 << 12;
  if (!sane || header[kPaddedVocabularyField] < header[kVocabularyField]) {
    throw CheckpointError(fmt::format("{}: the sizes in its header are impossible", file.path()));
  }
  return header;
}

}  // namespace

bool is_llmc_gpt2_file(const std::filesystem::path& file) {
  std::int32_t magic = 0;
  const FileDescriptor in = open_regular_file(file.string()).file;
  const bool has_magic = in && ::read(in.get(), &magic, sizeof(magic)) == ssize_t{sizeof(magic)};
  if (has_magic && magic == kLlama3Magic) {
    throw ConfigError(
        fmt::format("{}: is an llm.c Llama 3 model; of llm.c's files, only GPT-2 models are read",
                    file.string()));
  }
  return has_magic && magic == kMagic;
}

LlmcGpt2File::LlmcGpt2File(const std::filesystem::path& path)
    : file_(MappedFile::open<CheckpointError>(path.string())) {
  file_.expect_sequential_reads();
  const Header header = read_header(file_);
  model_ = gpt2_of(header[kPositionsField], header[kVocabularyField], header[kLayersField],
                   header[kHeadsField], header[kWidthField], path.string());
  const DType dtype = header[kVersionField] == kF32Version ? DType::kF32 : DType::kBF16;
  const std::vector<ForeignTensor> tensors = tensors_of(model_, header[kPaddedVocabularyField]);
  const std::int64_t expected = kHeaderBytes + elements_of(tensors) * size_of(dtype);
  if (static_cast<std::int64_t>(file_.bytes().size()) != expected) {
    throw CheckpointError(fmt::format("{}: has {} bytes, the sizes in its header make {}",
                                      path.string(), file_.bytes().size(), expected));
  }
  std::map<std::string, Part> by_name;
  const std::byte* first = file_.bytes().data() + kHeaderBytes;
  for (const ForeignTensor& tensor : tensors) {
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
      by_name.emplace(tensor.parts[i].name,
                      Part{tensor.parts[i], place_of_part(tensor, i, first, dtype)});
    }
    first += tensor.shape.numel() * size_of(dtype);
  }
  for (auto& [name, part] : by_name) {
    entries_.push_back(
        {.tensor = name, .state = "parameter", .shape = part.tensor.shape, .dtype = dtype});
    parts_.push_back(std::move(part));
  }
}

void LlmcGpt2File::read(const std::string& state, const Piece& piece, Tensor out) const {
  const auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& candidate) {
    return candidate.tensor.name == piece.tensor;
  });
  if (part == parts_.end() || state != "parameter") {
    throw CheckpointError(
        fmt::format("{} holds no {} of \"{}\"", file_.path(), state, piece.tensor));
  }
  if (part->tensor.shape != piece.shape) {
    throw CheckpointError(fmt::format("{}: \"{}\" has shape {}, expected {}", file_.path(),
                                      piece.tensor, part->tensor.shape.to_string(),
                                      piece.shape.to_string()));
  }
  read_placed(part->place, piece, out);
  const auto bytes = static_cast<std::size_t>(piece.shape.numel() * size_of(part->place.dtype));
  file_.release({part->place.first, bytes});
}

LlmcGpt2Layout llmc_gpt2_layout(const ModelSpec& model, DType dtype) {
  const auto refuse = [](const std::string& why) {
    throw ConfigError(fmt::format("llm.c has no file for this model: {}", why));
  };
  if (model.model_type != "gpt2") {
    refuse(fmt::format("it is a {}, and only GPT-2 is written", model.model_type));
  }
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    refuse(fmt::format("{} is neither f32 nor bf16", name_of(dtype)));
  }
  const ModelSpec plain = gpt2_of(model.max_positions, model.vocab_size, model.num_layers,
                                  model.num_heads, model.hidden_size, "llm.c");
  if (plain.intermediate_size != model.intermediate_size) {
    refuse(
        fmt::format("its MLP is {} wide, not 4 × {}", model.intermediate_size, model.hidden_size));
  }
  if (!model.tied_embeddings) {
    refuse("its head is not the embedding");
  }
  if (plain.norm_epsilon != model.norm_epsilon) {
    refuse(fmt::format("its layer_norm_epsilon is {}, not {}", model.norm_epsilon,
                       plain.norm_epsilon));
  }
  const std::int64_t padded =
      (model.vocab_size + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
  Header header{};
  header[kMagicField] = kMagic;
  header[kVersionField] = dtype == DType::kF32 ? kF32Version : kBF16Version;
  const auto put = [&](HeaderField field, std::int64_t value) {
    if (value > INT32_MAX) refuse(fmt::format("{} does not fit its header", value));
    header[field] = static_cast<std::int32_t>(value);
  };
  put(kPositionsField, model.max_positions);
  put(kVocabularyField, model.vocab_size);
  put(kLayersField, model.num_layers);
  put(kHeadsField, model.num_heads);
  put(kWidthField, model.hidden_size);
  put(kPaddedVocabularyField, padded);
  LlmcGpt2Layout layout{.header = std::string(kHeaderBytes, '\0'),
                        .tensors = tensors_of(model, padded)};
  std::memcpy(layout.header.data(), header.data(), kHeaderBytes);
  layout.file_bytes = kHeaderBytes + elements_of(layout.tensors) * size_of(dtype);
  return layout;
}

}  // namespace dstrain
