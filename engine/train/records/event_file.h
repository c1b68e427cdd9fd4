// The file format of TensorBoard's events, TensorFlow's TFRecord: each record is the length of its
// data (u64), the masked CRC-32C of the length (u32), the data, and its masked CRC-32C.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace dstrain {

/// The bytes of a record with such data.
std::string event_record(std::string_view data);

/// Reads a file's records in order, as long as they are whole and `keep` returns true for their
/// data. Returns the bytes of those; 0 where there is no file. Throws StorageError where it cannot
/// be read.
std::int64_t read_events(const std::filesystem::path& path,
                         const std::function<bool(std::string_view data)>& keep);

}  // namespace dstrain
