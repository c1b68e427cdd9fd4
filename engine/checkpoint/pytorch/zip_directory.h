// Where the entries of a zip file lie. torch.save writes its files as zip archives with nothing
// compressed, so an entry's bytes can be used where they are, in the mapped file.
//
// Only such archives are read: compressed, encrypted or split ones, names given twice and entries
// that overlap are refused. zip64 (more than 4 GiB, more than 65535 entries) is understood.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dstrain {

struct ZipEntry {
  std::string name;
  std::int64_t begin_byte = 0;  ///< of the entry's content, within the file
  std::int64_t bytes = 0;
};

/// The entries in the order of the archive's directory. Throws CheckpointError, without the file's
/// name. Takes no more memory than the directory itself.
std::vector<ZipEntry> read_zip_directory(std::span<const std::byte> file);

}  // namespace dstrain
