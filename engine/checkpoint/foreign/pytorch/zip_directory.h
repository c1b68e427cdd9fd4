// Finds where the entries of a zip file lie. torch.save writes its files as zip archives with
// nothing compressed, so an entry's bytes can be used where they are, in the mapped file.
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
  std::uint32_t crc32 = 0;  ///< of the content, as the directory has it
};

/// The entries in the order of the archive's directory. Throws CheckpointError, without the file's
/// name. Takes no more memory than the directory itself.
std::vector<ZipEntry> read_zip_directory(std::span<const std::byte> file);

/// Reads the entry's content and compares its CRC-32. Throws DamagedCheckpoint, without the file's
/// name.
void check_crc32(std::span<const std::byte> file, const ZipEntry& entry);

}  // namespace dstrain
