// TorchFile: a file that torch.save wrote, readable without executing anything in it. The file is
// mapped and only its description is read: opening one takes no memory for tensors.
//
//   const TorchFile file("mp_rank_00_model_states.pt");
//   const TorchTensor weight = file.root().at("module").at("wte.weight").tensor("wte.weight");
//   read_floats(weight, file.storage(weight), /*first=*/0, out);
//
// The values of root() point into the TorchFile, which therefore stays where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>

#include "engine/base/mapped_file.h"
#include "engine/checkpoint/foreign/pytorch/pickle_value.h"
#include "engine/checkpoint/foreign/pytorch/torch_tensor.h"
#include "engine/checkpoint/foreign/pytorch/zip_directory.h"

namespace dstrain {

/// The content of such a file.
struct TorchArchive {
  PickleDocument document;
  std::map<std::string, ZipEntry, std::less<>> storages;  ///< by key
};
enum class Checksums { kCompared, kIgnored };
/// Throws CheckpointError without the file's name. The checksums are those of what is read here,
/// not those of storages.
TorchArchive parse_torch_archive(std::span<const std::byte> bytes, Checksums checksums);

class TorchFile {
 public:
  /// Throws CheckpointError, naming the file and what is wrong with it.
  explicit TorchFile(const std::filesystem::path& path);
  TorchFile(const TorchFile&) = delete;
  TorchFile& operator=(const TorchFile&) = delete;

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] PickleValue root() const { return archive_.document.root(); }
  /// Frees what root() gave. Tensors taken from it stay readable.
  void forget_values() { archive_.document = {}; }
  /// Returns the whole storage that a tensor of this file is a view of. The first call for a
  /// storage reads it once to compare its CRC-32, which leaves it in the system's cache for whoever
  /// reads it next. Throws DamagedCheckpoint without the file's name. May be called by one thread
  /// at a time.
  [[nodiscard]] std::span<const std::byte> storage(const TorchTensor& tensor) const;

 private:
  MappedFile file_;
  TorchArchive archive_;
  mutable std::set<std::string, std::less<>> compared_;  ///< keys of storages found whole
};

}  // namespace dstrain
