#include "engine/train/records/event_file.h"

#include <fstream>

#include <fmt/format.h>
#include <isa-l/crc.h>

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {
namespace {

constexpr std::uint64_t kLongestEvent = std::uint64_t{1} << 30;  // a longer one is damage

/// CRC-32C, rotated by 15 bits, plus a constant: so that the checksum of data that contain
/// checksums is a good one.
std::uint32_t masked_crc(std::string_view bytes) {
  // ISA-L only reads, though its parameter is not const.
  auto* const data = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  const std::uint32_t crc = ~crc32_iscsi(data, static_cast<int>(bytes.size()), ~0U);
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

template <typename T>
std::string_view bytes_of(const T& number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

template <typename T>
bool read_number(std::ifstream& in, T& number) {
  return static_cast<bool>(in.read(reinterpret_cast<char*>(&number), sizeof(number)));
}

}  // namespace

std::string event_record(std::string_view data) {
  const std::uint64_t length = data.size();
  const std::uint32_t length_crc = masked_crc(bytes_of(length));
  const std::uint32_t data_crc = masked_crc(data);
  std::string record;
  record.append(bytes_of(length)).append(bytes_of(length_crc));
  record.append(data).append(bytes_of(data_crc));
  return record;
}

std::int64_t read_events(const std::filesystem::path& path,
                         const std::function<bool(std::string_view data)>& keep) {
  std::ifstream in(path, std::ios::binary);
  std::int64_t bytes = 0;
  std::uint64_t length = 0;
  std::uint32_t crc = 0;
  std::string data;
  while (read_number(in, length) && read_number(in, crc)) {
    if (crc != masked_crc(bytes_of(length)) || length > kLongestEvent) break;
    data.resize(length);
    const bool is_whole = in.read(data.data(), static_cast<std::streamsize>(length)) &&
                          read_number(in, crc) && crc == masked_crc(data);
    if (!is_whole || !keep(data)) break;
    bytes += static_cast<std::int64_t>(sizeof(length) + 2 * sizeof(crc) + length);
  }
  if (in.bad()) throw StorageError(fmt::format("cannot read {}", path.string()));
  return bytes;
}

}  // namespace dstrain
