// The file format of Weights & Biases' offline runs: seven bytes, then records as in LevelDB's log.
// Blocks of 32 KiB hold pieces of records, each after its checksum (zlib's CRC-32 of its kind and
// data, u32), its length (u16) and its kind (u8): whole, first, middle or last. Where fewer than
// seven bytes are left of a block, they are zeros.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace dstrain {

/// The seven bytes of a new file.
std::string wandb_log_header();

/// The bytes of a record that begins after so many bytes of its file.
std::string wandb_log_record(std::int64_t at, std::string_view data);

/// Reads a file's records in order, as long as they are whole and `keep` returns true for their
/// data. Returns the bytes of the header and those; 0 where the header is not there. Throws
/// StorageError where it cannot be read.
std::int64_t read_wandb_log(const std::filesystem::path& path,
                            const std::function<bool(std::string_view data)>& keep);

}  // namespace dstrain
