#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit
constexpr std::size_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

/// Bits of one element; 0 if the format has no such dtype.
std::int64_t bits_of(std::string_view dtype) {
  constexpr std::pair<std::string_view, std::int64_t> kBits[] = {
      {"F32", 32},    {"BF16", 16},   {"F16", 16},        {"F64", 64},        {"I64", 64},
      {"I32", 32},    {"I16", 16},    {"I8", 8},          {"U64", 64},        {"U32", 32},
      {"U16", 16},    {"U8", 8},      {"BOOL", 8},        {"C64", 64},        {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"F4", 4}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) {
      return bits;
    }
  }
  return 0;
}

/// Bytes of a tensor; nothing if that overflows or does not fill whole bytes.
std::optional<std::int64_t> bytes_of(std::int64_t bits, std::span<const std::int64_t> shape) {
  std::int64_t total_bits = bits;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(total_bits, extent, &total_bits)) {
      return std::nullopt;
    }
  }
  if (total_bits % 8 != 0) {
    return std::nullopt;
  }
  return total_bits / 8;
}

/// Looks for a key that occurs twice in one object, in a pass of its own over the text: as a
/// callback of the parser that builds the document, it would have to search all earlier members
/// after each one.
class DuplicateKey final : public nlohmann::json_sax<json> {
 public:
  [[nodiscard]] const std::string& found() const { return found_; }

  bool start_object(std::size_t /*elements*/) override {
    open_objects_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_objects_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (!open_objects_.back().insert(name).second) {
      found_ = name;
      return false;
    }
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_array(std::size_t /*elements*/) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t /*position*/,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  std::vector<std::unordered_set<std::string>> open_objects_;
  std::string found_;
};

/// Parses a JSON document and refuses an object that names a key twice; nlohmann alone would keep
/// the last one.
json parse_without_duplicates(std::string_view text) {
  json document = json::parse(text);
  DuplicateKey duplicate;
  if (!json::sax_parse(text, &duplicate)) {
    throw CheckpointError(fmt::format("the key \"{}\" comes twice", duplicate.found()));
  }
  return document;
}

std::int64_t non_negative(const json& value, std::string_view what) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    throw CheckpointError(fmt::format("{} is {}, not a size", what, value.dump()));
  }
  return value.get<std::int64_t>();
}

SafetensorsEntry parse_entry(const std::string& name, const json& value) {
  try {
    SafetensorsEntry entry;
    entry.dtype = value.at("dtype").get<std::string>();
    for (const json& extent : value.at("shape").get_ref<const json::array_t&>()) {
      entry.shape.push_back(non_negative(extent, "an extent"));
    }
    const auto& offsets = value.at("data_offsets").get_ref<const json::array_t&>();
    if (offsets.size() != 2) {
      throw CheckpointError("data_offsets are not two numbers");
    }
    entry.begin_byte = non_negative(offsets[0], "the beginning");
    entry.end_byte = non_negative(offsets[1], "the end");
    const std::int64_t bits = bits_of(entry.dtype);
    if (bits == 0) {
      throw CheckpointError(fmt::format("unknown dtype \"{}\"", entry.dtype));
    }
    const auto bytes = bytes_of(bits, entry.shape);
    if (entry.end_byte < entry.begin_byte || bytes != entry.end_byte - entry.begin_byte) {
      throw CheckpointError(fmt::format("{} of shape {} do not fit data_offsets [{}, {}]",
                                        entry.dtype, value.at("shape").dump(), entry.begin_byte,
                                        entry.end_byte));
    }
    return entry;
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("tensor \"{}\": {}", name, error.what()));
  }
}

/// The data must consist of the tensors alone: no hole, no overlap, no remainder.
void check_tiling(const std::map<std::string, SafetensorsEntry>& tensors, std::int64_t data_bytes) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> order;
  for (const auto& tensor : tensors) {
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin_byte, a->second.end_byte) <
           std::pair(b->second.begin_byte, b->second.end_byte);
  });
  std::int64_t end = 0;
  for (const auto* tensor : order) {
    if (tensor->second.begin_byte != end) {
      throw CheckpointError(fmt::format("tensor \"{}\" begins at data byte {}, expected {}",
                                        tensor->first, tensor->second.begin_byte, end));
    }
    end = tensor->second.end_byte;
  }
  if (end != data_bytes) {
    throw CheckpointError(
        fmt::format("its tensors fill {} bytes of data, the file has {}: it was "
                    "cut short or something was appended",
                    end, data_bytes));
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(MappedFile::open<CheckpointError>(path.string())) {
  file_.expect_sequential_reads();
  try {
    const auto bytes = file_.bytes();
    std::uint64_t length = 0;
    if (bytes.size() < kLengthBytes) {
      throw CheckpointError(fmt::format("{} bytes are too few for a header", bytes.size()));
    }
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kMaxHeaderBytes || length > bytes.size() - kLengthBytes) {
      throw CheckpointError(
          fmt::format("a header of {} bytes in a file of {}", length, bytes.size()));
    }
    header_bytes_ = kLengthBytes + length;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
    if (!text.starts_with('{')) {
      throw CheckpointError("its header does not begin with {");
    }
    const json header = parse_without_duplicates(text);
    for (const auto& [name, value] : header.items()) {
      if (name != kMetadataKey) {
        tensors_.emplace(name, parse_entry(name, value));
        continue;
      }
      for (const auto& [key, text_value] : value.get_ref<const json::object_t&>()) {
        metadata_.emplace(key, text_value.get<std::string>());
      }
    }
    check_tiling(tensors_, static_cast<std::int64_t>(bytes.size() - header_bytes_));
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: damaged header: {}", path.string(), error.what()));
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

std::span<const std::byte> SafetensorsFile::header() const {
  return file_.bytes().first(header_bytes_);
}

std::span<const std::byte> SafetensorsFile::data(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(header_bytes_ + static_cast<std::size_t>(entry.begin_byte),
                               static_cast<std::size_t>(entry.end_byte - entry.begin_byte));
}

SafetensorsWriter::Layout SafetensorsWriter::lay_out(
    std::span<const SafetensorsDecl> tensors, const std::map<std::string, std::string>& metadata) {
  Layout layout;
  // The reference reader gives metadata to programs that look for it first: keep it in front.
  std::string text = fmt::format("{{\"{}\":{}", kMetadataKey, json(metadata).dump());
  std::int64_t offset = 0;
  std::int64_t last_bits = INT64_MAX;
  std::set<std::string_view> names;
  for (const SafetensorsDecl& tensor : tensors) {
    const std::int64_t bits = bits_of(tensor.dtype);
    const auto bytes = bytes_of(bits, tensor.shape);
    check(bits > 0 && bits <= last_bits && bytes.has_value(),
          "tensor \"{}\" of {} cannot follow one of {} bits an element", tensor.name, tensor.dtype,
          last_bits);
    check(tensor.name != kMetadataKey && names.insert(tensor.name).second,
          "two tensors are called \"{}\"", tensor.name);
    last_bits = bits;
    text += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                        json(tensor.name).dump(), tensor.dtype, json(tensor.shape).dump(), offset,
                        offset + *bytes);
    layout.tensor_bytes.push_back(*bytes);
    offset += *bytes;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(text.size() <= kMaxHeaderBytes, "{} tensors are too many for one file", tensors.size());
  const std::uint64_t length = text.size();
  layout.header.resize(kLengthBytes);
  std::memcpy(layout.header.data(), &length, kLengthBytes);
  layout.header += text;
  layout.file_bytes = static_cast<std::int64_t>(layout.header.size()) + offset;
  return layout;
}

SafetensorsWriter::SafetensorsWriter(const DurableFiles& files,
                                     const std::filesystem::path& path,
                                     std::span<const SafetensorsDecl> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : layout_(lay_out(tensors, metadata)), file_(files, path, layout_.file_bytes) {
  file_.write(std::as_bytes(std::span(layout_.header)));
}

void SafetensorsWriter::write(std::span<const std::byte> data) {
  check(next_ < layout_.tensor_bytes.size() && part_bytes_ == 0 &&
            static_cast<std::int64_t>(data.size()) == layout_.tensor_bytes[next_],
        "tensor {} of {}: {} bytes are not what was declared", next_, layout_.tensor_bytes.size(),
        data.size());
  file_.write(data);
  ++next_;
}

void SafetensorsWriter::write_part(std::span<const std::byte> data) {
  part_bytes_ += static_cast<std::int64_t>(data.size());
  check(next_ < layout_.tensor_bytes.size() && part_bytes_ <= layout_.tensor_bytes[next_],
        "tensor {} of {}: {} bytes are more than were declared", next_, layout_.tensor_bytes.size(),
        part_bytes_);
  file_.write(data);
  if (part_bytes_ == layout_.tensor_bytes[next_]) {
    part_bytes_ = 0;
    ++next_;
  }
}

void SafetensorsWriter::finish() {
  check(next_ == layout_.tensor_bytes.size(), "{} of {} tensors were written", next_,
        layout_.tensor_bytes.size());
  file_.finish();
}

}  // namespace dstrain
