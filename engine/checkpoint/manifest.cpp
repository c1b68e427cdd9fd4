#include "engine/checkpoint/manifest.h"

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/checksum.h"
#include "engine/base/regular_file.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/training_text.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

using nlohmann::json;

/// The only line that the checksum does not cover; it is compared character by character instead.
std::string first_line(int format, std::string_view rest) {
  return fmt::format("{{\"dstrain_checkpoint\": {}, \"xxh3_64\": \"{}\",\n", format,
                     checksum_text(checksum(rest)));
}

std::string json_text(std::string_view text) {
  return json(text).dump();
}

std::string piece_text(const StoredPiece& piece, const std::vector<StoredFile>& files) {
  return fmt::format(
      "{{\"file\": {}, \"key\": {}, \"box_start\": {}, \"box_extent\": {}, \"flat\": [{}, {}], "
      "\"dtype\": \"{}\", \"xxh3_64\": \"{}\"}}",
      json_text(files[piece.file].name), json_text(piece.key), piece.range.start.to_string(),
      piece.range.extent.to_string(), piece.range.flat.begin, piece.range.flat.end,
      stored_name(piece.dtype), checksum_text(piece.checksum));
}

// The checks of parse_manifest, each with the sentence for its failure. The text has passed its
// checksum by then, so these catch a writer's mistake, not damage.

void expect(bool condition, std::string_view what) {
  if (!condition) {
    throw CheckpointError(std::string(what));
  }
}

Shape parse_shape(const json& value) {
  expect(value.is_array() && value.size() <= Shape::kMaxRank, "a shape has at most 4 dims");
  Shape shape;
  std::int64_t numel = 1;
  for (const json& extent : value) {
    const auto number = extent.get<std::int64_t>();
    expect(number >= 0 && !__builtin_mul_overflow(numel, number, &numel), "a shape is too large");
    shape.push_back(number);
  }
  return shape;
}

std::uint64_t parse_checksum_of(const json& value, const char* key) {
  std::uint64_t number = 0;
  expect(parse_checksum(value.at(key).get<std::string>(), number), "a checksum has 16 hex digits");
  return number;
}

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (name == stored_name(dtype)) {
      return dtype;
    }
  }
  throw CheckpointError("a piece is neither of F32 nor of BF16");
}

StoredFile parse_file(const json& value) {
  StoredFile file{.name = value.at("name").get<std::string>(),
                  .bytes = value.at("bytes").get<std::int64_t>(),
                  .header_checksum = parse_checksum_of(value, "header_xxh3_64")};
  expect(!file.name.empty() && file.name[0] != '.' && file.name.find('/') == std::string::npos,
         "a file's name must be that of a file beside the manifest");
  return file;
}

StoredPiece parse_piece(const json& value,
                        const Shape& shape,
                        const std::map<std::string, std::size_t>& file_index) {
  const auto file = file_index.find(value.at("file").get<std::string>());
  expect(file != file_index.end(), "a piece lies in a file that is not listed");
  const json& flat = value.at("flat");
  expect(flat.size() == 2, "a flat range has two ends");
  StoredPiece piece{.file = file->second,
                    .key = value.at("key").get<std::string>(),
                    .range = {.start = parse_shape(value.at("box_start")),
                              .extent = parse_shape(value.at("box_extent")),
                              .flat = {flat[0].get<std::int64_t>(), flat[1].get<std::int64_t>()}},
                    .dtype = parse_dtype(value.at("dtype").get<std::string>()),
                    .checksum = parse_checksum_of(value, "xxh3_64")};
  const BoxedRange& range = piece.range;
  expect(range.start.rank() == shape.rank() && range.extent.rank() == shape.rank(),
         "a box and its tensor differ in their number of dims");
  for (int dim = 0; dim < shape.rank(); ++dim) {
    expect(range.start[dim] <= shape[dim] && range.extent[dim] <= shape[dim] - range.start[dim],
           "a box sticks out of its tensor");
  }
  expect(0 <= range.flat.begin && range.flat.begin < range.flat.end &&
             range.flat.end <= range.extent.numel(),
         "a piece sticks out of its box");
  return piece;
}

Manifest parse_document(const json& document) {
  Manifest manifest;
  manifest.training = parse_training(document);
  if (document.contains("rollouts") && !document.at("rollouts").is_null()) {
    manifest.rollouts = parse_checksum_of(document, "rollouts");
  }
  std::map<std::string, std::size_t> file_index;
  for (const json& value : document.at("files")) {
    manifest.files.push_back(parse_file(value));
    expect(file_index.emplace(manifest.files.back().name, file_index.size()).second,
           "a file is listed twice");
  }
  for (const auto& [name, value] : document.at("tensors").items()) {
    StoredTensor tensor{.shape = parse_shape(value.at("shape")), .states = {}};
    for (const auto& [state, pieces] : value.at("states").items()) {
      for (const json& piece : pieces) {
        tensor.states[state].push_back(parse_piece(piece, tensor.shape, file_index));
      }
    }
    manifest.tensors.emplace(name, std::move(tensor));
  }
  return manifest;
}

}  // namespace

std::string_view stored_name(DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16, "{} is not stored in checkpoints",
        name_of(dtype));
  return dtype == DType::kF32 ? "F32" : "BF16";
}

std::string to_text(const Manifest& manifest) {
  std::string rest = to_text(manifest.training);
  rest += fmt::format("\"rollouts\": {},\n\"files\": [",
                      manifest.rollouts ? json_text(checksum_text(*manifest.rollouts)) : "null");
  std::string_view separator = "\n";
  for (const StoredFile& file : manifest.files) {
    rest +=
        fmt::format("{}  {{\"name\": {}, \"bytes\": {}, \"header_xxh3_64\": \"{}\"}}", separator,
                    json_text(file.name), file.bytes, checksum_text(file.header_checksum));
    separator = ",\n";
  }
  rest += "],\n\"tensors\": {";
  separator = "\n";
  for (const auto& [name, tensor] : manifest.tensors) {
    rest += fmt::format("{}  {}: {{\"shape\": {}, \"states\": {{", separator, json_text(name),
                        tensor.shape.to_string());
    separator = "\n";
    for (const auto& [state, pieces] : tensor.states) {
      rest += fmt::format("{}    {}: [", separator, json_text(state));
      separator = "\n";
      for (const StoredPiece& piece : pieces) {
        rest += fmt::format("{}      {}", separator, piece_text(piece, manifest.files));
        separator = ",\n";
      }
      rest += "]";
      separator = ",\n";
    }
    rest += "}}";
    separator = ",\n";
  }
  rest += "}\n}\n";
  return first_line(kFormat, rest) + rest;
}

Manifest parse_manifest(std::string_view text) {
  const std::size_t end_of_line = text.find('\n');
  expect(end_of_line != std::string_view::npos, "it has no first line: cut short");
  const std::string_view rest = text.substr(end_of_line + 1);
  int format = kFormat;
  const std::string line(text.substr(0, std::min<std::size_t>(end_of_line, 100)));
  if (std::sscanf(line.c_str(), "{\"dstrain_checkpoint\": %d", &format) == 1 &&
      (format < kFirstFormat || format > kFormat)) {
    throw CheckpointError(fmt::format("it has format {}, this dstrain reads formats {} to {}",
                                      format, kFirstFormat, kFormat));
  }
  if (text.substr(0, end_of_line + 1) != first_line(format, rest)) {
    throw CheckpointError("damaged: its text does not have the checksum of its first line");
  }
  try {
    return parse_document(json::parse(text));
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("it is not what dstrain writes: {}", error.what()));
  }
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestName;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw CheckpointError(
        fmt::format("{} is not a checkpoint: it has no manifest.json", checkpoint.string()));
  }
  const FileText file = read_regular_file(path.string());
  if (!file.why.empty()) {
    throw CheckpointError(fmt::format("cannot read {}: {}", path.string(), file.why));
  }
  try {
    return parse_manifest(file.text);
  } catch (const CheckpointError& cause) {
    throw CheckpointError(fmt::format("{}: {}", path.string(), cause.what()));
  }
}

void merge(Manifest& whole, Manifest share) {
  check(share.training.step == whole.training.step, "one rank saves step {}, another step {}",
        whole.training.step, share.training.step);
  const std::size_t first_file = whole.files.size();
  for (StoredFile& file : share.files) {
    whole.files.push_back(std::move(file));
  }
  for (auto& [name, tensor] : share.tensors) {
    StoredTensor& all =
        whole.tensors.try_emplace(name, StoredTensor{tensor.shape, {}}).first->second;
    check(all.shape == tensor.shape, "tensor \"{}\": {} on one rank, {} on another", name,
          all.shape.to_string(), tensor.shape.to_string());
    for (auto& [state, pieces] : tensor.states) {
      for (StoredPiece& piece : pieces) {
        piece.file += first_file;
        all.states[state].push_back(std::move(piece));
      }
    }
  }
}

std::optional<std::string> fault_of_files(const Manifest& manifest,
                                          const std::filesystem::path& checkpoint) {
  for (const StoredFile& file : manifest.files) {
    const std::filesystem::path path = checkpoint / file.name;
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(path, error);
    if (error) {
      return fmt::format("{}: {}", path.string(), error.message());
    }
    if (bytes != static_cast<std::uintmax_t>(file.bytes)) {
      return fmt::format("{} has {} bytes, expected {}", path.string(), bytes, file.bytes);
    }
  }
  return std::nullopt;
}

}  // namespace dstrain
