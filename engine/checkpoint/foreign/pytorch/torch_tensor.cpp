#include "engine/checkpoint/foreign/pytorch/torch_tensor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "kernels/core/bf16.h"
#include "kernels/core/check.h"
#include "kernels/core/f16.h"

namespace dstrain {
namespace {

constexpr std::array kDtypes = {
    TorchDtype{"float32", "FloatStorage", "F32", 4},
    TorchDtype{"float64", "DoubleStorage", "F64", 8},
    TorchDtype{"float16", "HalfStorage", "F16", 2},
    TorchDtype{"bfloat16", "BFloat16Storage", "BF16", 2},
    TorchDtype{"int64", "LongStorage", "I64", 8},
    TorchDtype{"int32", "IntStorage", "I32", 4},
    TorchDtype{"int16", "ShortStorage", "I16", 2},
    TorchDtype{"int8", "CharStorage", "I8", 1},
    TorchDtype{"uint8", "ByteStorage", "U8", 1},
    TorchDtype{"bool", "BoolStorage", "BOOL", 1},
    TorchDtype{"complex64", "ComplexFloatStorage", "C64", 8},
    TorchDtype{"uint16", "", "U16", 2},
    TorchDtype{"uint32", "", "U32", 4},
    TorchDtype{"uint64", "", "U64", 8},
    TorchDtype{"float8_e4m3fn", "", "F8_E4M3", 1},
    TorchDtype{"float8_e5m2", "", "F8_E5M2", 1},
    TorchDtype{"float8_e4m3fnuz", "", "F8_E4M3FNUZ", 1},
    TorchDtype{"float8_e5m2fnuz", "", "F8_E5M2FNUZ", 1},
    TorchDtype{"float8_e8m0fnu", "", "F8_E8M0", 1},
};

/// Values of type T that may lie unaligned.
template <typename T>
void convert(const std::byte* from, std::span<float> out) {
  for (float& value : out) {
    T stored;
    std::memcpy(&stored, from, sizeof(T));
    from += sizeof(T);
    if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<float>(stored);
    } else {
      value = to_float(stored);
    }
  }
}

using Converter = void (*)(const std::byte*, std::span<float>);

Converter converter_from(std::string_view dtype) {
  constexpr std::pair<std::string_view, Converter> kConverters[] = {
      {"F32", convert<float>},         {"BF16", convert<BF16>},
      {"F16", convert<F16>},           {"F64", convert<double>},
      {"I64", convert<std::int64_t>},  {"I32", convert<std::int32_t>},
      {"I16", convert<std::int16_t>},  {"I8", convert<std::int8_t>},
      {"U8", convert<std::uint8_t>},   {"BOOL", convert<std::uint8_t>},
      {"U16", convert<std::uint16_t>}, {"U32", convert<std::uint32_t>},
      {"U64", convert<std::uint64_t>}};
  for (const auto& [name, converter] : kConverters) {
    if (name == dtype) {
      return converter;
    }
  }
  return nullptr;
}

void check_range(const TorchTensor& tensor,
                 std::span<const std::byte> storage,
                 std::int64_t first,
                 std::int64_t count) {
  check(static_cast<std::int64_t>(storage.size()) == tensor.storage_bytes,
        "a storage of {} bytes instead of {}", storage.size(), tensor.storage_bytes);
  check(first >= 0 && count >= 0 && count <= tensor.num_elements() - first,
        "elements [{}, {} + {}) of a tensor with {}", first, first, count, tensor.num_elements());
}

}  // namespace

const TorchDtype* torch_dtype_named(std::string_view name) {
  const auto* const found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                         [&](const TorchDtype& d) { return d.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

const TorchDtype* torch_dtype_of_storage(std::string_view storage_name) {
  const auto* const found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const TorchDtype& d) {
    return !d.storage_name.empty() && d.storage_name == storage_name;
  });
  return found == kDtypes.end() ? nullptr : found;
}

std::int64_t TorchTensor::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

bool TorchTensor::is_contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] != 1 && strides[dim] != expected) {
      return false;
    }
    expected *= shape[dim];
  }
  return true;
}

void copy_elements(const TorchTensor& tensor,
                   std::span<const std::byte> storage,
                   std::int64_t first,
                   std::int64_t count,
                   std::span<std::byte> out) {
  check_range(tensor, storage, first, count);
  const std::int64_t width = tensor.dtype->bytes;
  check(static_cast<std::int64_t>(out.size()) == count * width, "{} bytes for {} elements of {}",
        out.size(), count, width);
  if (count == 0) {
    return;
  }
  const std::byte* from = storage.data() + tensor.offset_elements * width;
  if (tensor.is_contiguous()) {
    std::memcpy(out.data(), from + first * width, out.size());
    return;
  }
  // Count through the dims like an odometer; `at` follows with the strides.
  const std::size_t num_dims = tensor.shape.size();
  std::vector<std::int64_t> position(num_dims);
  std::int64_t at = 0;
  std::int64_t rest = first;
  for (std::size_t dim = num_dims; dim-- > 0;) {
    position[dim] = rest % tensor.shape[dim];
    rest /= tensor.shape[dim];
    at += position[dim] * tensor.strides[dim];
  }
  for (std::byte* to = out.data(); to != out.data() + out.size(); to += width) {
    std::memcpy(to, from + at * width, static_cast<std::size_t>(width));
    for (std::size_t dim = num_dims; dim-- > 0;) {
      at += tensor.strides[dim];
      if (++position[dim] < tensor.shape[dim]) {
        break;
      }
      at -= tensor.shape[dim] * tensor.strides[dim];
      position[dim] = 0;
    }
  }
}

void read_floats(const TorchTensor& tensor,
                 std::span<const std::byte> storage,
                 std::int64_t first,
                 std::span<float> out) {
  const auto count = static_cast<std::int64_t>(out.size());
  check_range(tensor, storage, first, count);
  const Converter converter = converter_from(tensor.dtype->safetensors_name);
  if (converter == nullptr) {
    throw CheckpointError(
        fmt::format("its values are of dtype {}, which fp32 cannot stand for", tensor.dtype->name));
  }
  const std::int64_t width = tensor.dtype->bytes;
  if (tensor.is_contiguous()) {
    converter(storage.data() + (tensor.offset_elements + first) * width, out);
    return;
  }
  constexpr std::int64_t kPieceElements = 4096;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(count, kPieceElements) * width));
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t elements = std::min(count - done, kPieceElements);
    const auto bytes = std::span(piece).first(static_cast<std::size_t>(elements * width));
    copy_elements(tensor, storage, first + done, elements, bytes);
    converter(bytes.data(),
              out.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(elements)));
    done += elements;
  }
}

}  // namespace dstrain
