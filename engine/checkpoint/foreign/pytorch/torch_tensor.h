// TorchTensor: a tensor as a torch file describes it, a strided view of a storage. The view is
// checked when the file is read: no element lies outside the storage. The values stay in the file;
// copy_elements and read_floats take them from there in pieces, in row-major order whatever the
// strides are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dstrain {

struct TorchDtype {
  std::string_view name;          ///< torch's: "bfloat16"
  std::string_view storage_name;  ///< of the storage's class: "BFloat16Storage"; "" if it has none
  std::string_view safetensors_name;  ///< "BF16"
  std::int64_t bytes = 0;
};

/// nullptr if there is none.
const TorchDtype* torch_dtype_named(std::string_view name);
const TorchDtype* torch_dtype_of_storage(std::string_view storage_name);

struct TorchTensor {
  const TorchDtype* dtype = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  std::int64_t offset_elements = 0;   ///< within the storage
  std::string_view storage_key;       ///< names the storage within its file
  std::int64_t storage_bytes = 0;

  [[nodiscard]] std::int64_t num_elements() const;
  /// Whether the elements lie in row-major order without gaps.
  [[nodiscard]] bool is_contiguous() const;
};

/// Copies elements [first, first + count) in the dtype in which they are stored.
void copy_elements(const TorchTensor& tensor,
                   std::span<const std::byte> storage,
                   std::int64_t first,
                   std::int64_t count,
                   std::span<std::byte> out);

/// Copies them as fp32, as torch's float() gives it: exact for the 16-bit types, rounded for wider
/// ones. Throws CheckpointError for complex and 8-bit floating-point types.
void read_floats(const TorchTensor& tensor,
                 std::span<const std::byte> storage,
                 std::int64_t first,
                 std::span<float> out);

}  // namespace dstrain
