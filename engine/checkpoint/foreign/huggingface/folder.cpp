#include "engine/checkpoint/foreign/huggingface/folder.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/base/regular_file.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/config/arch/family.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr const char* kBlocks = "_blocks";  // behind the name of a tensor in MXFP4
constexpr const char* kScales = "_scales";

bool is_shape(const SafetensorsEntry& entry, const Shape& shape) {
  bool equal = static_cast<int>(entry.shape.size()) == shape.rank();
  for (int dim = 0; equal && dim < shape.rank(); ++dim) {
    equal = entry.shape[static_cast<std::size_t>(dim)] == shape[dim];
  }
  return equal;
}

/// "weight_map" of the index: the tensor's file.
std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  using nlohmann::json;
  const FileText index = read_regular_file(path.string());
  if (!index.why.empty()) {
    throw CheckpointError(fmt::format("{}: {}", path.string(), index.why));
  }
  const json document = json::parse(index.text, nullptr, /*allow_exceptions=*/false);
  std::map<std::string, std::string> map;
  const bool has_map =
      document.is_object() && document.contains("weight_map") && document["weight_map"].is_object();
  if (!has_map) {
    throw CheckpointError(
        fmt::format("{}: expected {{\"weight_map\": {{\"tensor\": \"file\", …}}}}", path.string()));
  }
  for (const auto& [tensor, file] : document["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name != fs::path(name).filename()) {
      throw CheckpointError(fmt::format("{}: \"{}\" lies in {}, which is not a file beside it",
                                        path.string(), tensor, file.dump()));
    }
    map.emplace(tensor, name);
  }
  return map;
}

}  // namespace

HuggingFaceFolder::HuggingFaceFolder(const fs::path& folder, const ModelSpec& model) {
  open(folder);
  match(folder, model);
}

void HuggingFaceFolder::open(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kSingle, error)) {
    if (!fs::exists(folder / kIndex, error)) {
      throw CheckpointError(
          fmt::format("{} holds neither {} nor {}", folder.string(), kSingle, kIndex));
    }
    return open_shards(folder / kIndex);
  }
  const SafetensorsFile& file =
      *files_.emplace_back(std::make_unique<SafetensorsFile>(folder / kSingle));
  for (const auto& [name, entry] : file.tensors()) {
    found_.emplace(name, Found{&file, &entry});
  }
}

void HuggingFaceFolder::open_shards(const fs::path& index) {
  const std::map<std::string, std::string> weight_map = read_weight_map(index);
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const auto& [tensor, name] : weight_map) {
    const SafetensorsFile*& file = by_name[name];
    if (file == nullptr) {
      file =
          files_.emplace_back(std::make_unique<SafetensorsFile>(index.parent_path() / name)).get();
    }
    const auto entry = file->tensors().find(tensor);
    if (entry == file->tensors().end()) {
      throw CheckpointError(fmt::format("{} does not hold \"{}\", which {} says lies there",
                                        file->path(), tensor, index.filename().string()));
    }
    found_.emplace(tensor, Found{file, &entry->second});
  }
  for (const auto& [name, file] : by_name) {
    for (const auto& [tensor, entry] : file->tensors()) {
      const auto listed = weight_map.find(tensor);
      if (listed == weight_map.end() || listed->second != name) {
        throw CheckpointError(fmt::format(
            "{} holds \"{}\", which {} {}", file->path(), tensor, index.filename().string(),
            listed == weight_map.end() ? "does not list" : "says lies in " + listed->second));
      }
    }
  }
}

void HuggingFaceFolder::match(const fs::path& folder, const ModelSpec& model) {
  const std::string_view prefix = huggingface_prefix(model);
  std::set<std::string> left;
  const std::string next_layer = fmt::format("model.layers.{}.", model.num_layers);
  for (const auto& [name, found] : found_) {
    if (family_of(model).leaves_out_next_layer && name.starts_with(next_layer)) {
      left_out_ = next_layer + "*, which predict a further token";
    } else if (!is_huggingface_buffer(name)) {
      left.insert(name);
    }
  }
  const std::string head = huggingface_head(model);
  const Found* table = nullptr;
  const auto without_prefix = [&](const std::string& name) {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : std::string();
  };
  const auto holds = [&](const std::string& name) {
    return left.contains(name) || left.contains(without_prefix(name));
  };
  for (const ForeignTensor& tensor : huggingface_tensors(model, holds)) {
    std::string name = tensor.name;
    const std::string bare = without_prefix(name);
    if (left.contains(name) && left.contains(bare)) {
      throw CheckpointError(
          fmt::format("{} holds both \"{}\" and \"{}\"", folder.string(), name, bare));
    }
    if (!left.contains(name) && !left.contains(name + kBlocks) && !bare.empty()) {
      name = bare;
    }
    if (family_of(model).reads_mxfp4 && tensor.experts > 0 && tensor.transposed &&
        left.contains(name + kBlocks)) {
      if (left.contains(name)) {
        throw CheckpointError(
            fmt::format("{} holds both \"{}\" and \"{}\"", folder.string(), name, name + kBlocks));
      }
      if (!left.contains(name + kScales)) {
        throw CheckpointError(fmt::format("{} holds \"{}\", but no \"{}\"", folder.string(),
                                          name + kBlocks, name + kScales));
      }
      left.erase(name + kBlocks);
      left.erase(name + kScales);
      add_packed(tensor, found_.at(name + kBlocks), found_.at(name + kScales));
      continue;
    }
    if (left.erase(name) == 0) {
      throw CheckpointError(fmt::format(
          "{} holds no \"{}\", which its config.json's model has{}", folder.string(), tensor.name,
          tensor.name == head
              ? "; where the head is the embedding, \"tie_word_embeddings\": true says so"
              : ""));
    }
    const Found& found = found_.at(name);
    if (table == nullptr) {
      table = &found;  // the embedding comes first
    }
    add(tensor, found);
  }
  if (model.tied_embeddings && !model.scores && left.erase(head) > 0) {
    compare_tied_head(head, *table);
  }
  if (!left.empty()) {
    const Found& found = found_.at(*left.begin());
    throw CheckpointError(fmt::format(
        "{} holds \"{}\"{}, which a {} of this config.json does not "
        "have",
        found.file->path(), *left.begin(),
        left.size() == 1 ? "" : fmt::format(" and {} more", left.size() - 1), model.model_type));
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.tensor < b.tensor; });
}

void HuggingFaceFolder::add(const ForeignTensor& tensor, const Found& found) {
  const auto dtype = weight_dtype(found.entry->dtype);
  if (!dtype) {
    throw CheckpointError(fmt::format("{}: \"{}\" is of {}; weights of F32, BF16 and F16 are read",
                                      found.file->path(), tensor.name, found.entry->dtype));
  }
  if (!is_shape(*found.entry, tensor.shape)) {
    throw CheckpointError(
        fmt::format("{}: \"{}\" has shape [{}], its config.json's model has {}", found.file->path(),
                    tensor.name, fmt::join(found.entry->shape, ", "), tensor.shape.to_string()));
  }
  const std::byte* first = found.file->data(*found.entry).data();
  for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
    const ModelTensor& part = tensor.parts[i];
    entries_.push_back(
        {.tensor = part.name, .state = "parameter", .shape = part.shape, .dtype = *dtype});
    parts_.emplace(
        part.name,
        Part{.tensor = part, .place = place_of_part(tensor, i, first, *dtype), .found = found});
  }
}

void HuggingFaceFolder::add_packed(const ForeignTensor& tensor,
                                   const Found& blocks,
                                   const Found& scales) {
  const Shape& part = tensor.parts.front().shape;  // [outputs, inputs]
  const auto each = std::ssize(tensor.parts) / tensor.experts;
  const std::int64_t outputs = each * part[0];
  const std::int64_t columns = part[1];
  const Shape of_scales{tensor.experts, outputs, columns / kMxfp4Block};
  const Shape of_blocks{tensor.experts, outputs, columns / kMxfp4Block, kMxfp4Block / 2};
  for (const auto& [found, shape] : {std::pair{&blocks, of_blocks}, {&scales, of_scales}}) {
    if (found->entry->dtype != "U8" || !is_shape(*found->entry, shape) ||
        columns % kMxfp4Block != 0) {
      throw CheckpointError(fmt::format(
          "{}: \"{}\" in MXFP4 is of {} with shape [{}], its config.json's model has U8 with {}",
          found->file->path(), tensor.name, found->entry->dtype,
          fmt::join(found->entry->shape, ", "), shape.to_string()));
    }
  }
  for (std::int64_t i = 0; i < std::ssize(tensor.parts); ++i) {
    const ModelTensor& ours = tensor.parts[static_cast<std::size_t>(i)];
    entries_.push_back(
        {.tensor = ours.name, .state = "parameter", .shape = ours.shape, .dtype = DType::kBF16});
    parts_.emplace(ours.name,
                   Part{.tensor = ours,
                        .place = {},
                        .found = blocks,
                        .packed = Mxfp4Matrix{.blocks = blocks.file->data(*blocks.entry).data(),
                                              .scales = scales.file->data(*scales.entry).data(),
                                              .first_row = i / each * outputs + i % each,
                                              .row_step = each,
                                              .columns = columns},
                        .scales = scales});
  }
}

void HuggingFaceFolder::compare_tied_head(const std::string& name, const Found& table) const {
  const Found& head = found_.at(name);
  constexpr std::size_t kStep = std::size_t{32} << 20;
  const auto a = head.file->data(*head.entry);
  const auto b = table.file->data(*table.entry);
  bool equal = head.entry->dtype == table.entry->dtype && a.size() == b.size();
  for (std::size_t at = 0; equal && at < a.size(); at += kStep) {
    const std::size_t count = std::min(kStep, a.size() - at);
    equal = std::memcmp(a.data() + at, b.data() + at, count) == 0;
    head.file->release(*head.entry);
    table.file->release(*table.entry);
  }
  if (!equal) {
    throw CheckpointError(fmt::format(
        "{}: \"{}\" is not the embedding, though its config.json ties them: to keep both, write "
        "\"tie_word_embeddings\": false there",
        head.file->path(), name));
  }
}

void HuggingFaceFolder::read(const std::string& state, const Piece& piece, Tensor out) const {
  const auto part = parts_.find(piece.tensor);
  if (part == parts_.end() || state != "parameter") {
    throw CheckpointError(fmt::format("{} holds no {} of \"{}\"",
                                      fs::path(files_.front()->path()).parent_path().string(),
                                      state, piece.tensor));
  }
  const auto& [tensor, place, found, packed, scales] = part->second;
  if (piece.shape != tensor.shape) {
    throw CheckpointError(fmt::format("{}: \"{}\" has shape {}, expected {}", found.file->path(),
                                      piece.tensor, tensor.shape.to_string(),
                                      piece.shape.to_string()));
  }
  if (packed) {
    read_mxfp4(*packed, piece, out);
    scales.file->release(*scales.entry);
  } else {
    read_placed(place, piece, out);
  }
  found.file->release(*found.entry);
}

}  // namespace dstrain
