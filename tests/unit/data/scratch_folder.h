// A folder for a test, removed with it, and bytes written by hand: the tests' own writers of token
// files, which share no code with dstrain's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace dstrain::test {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "dstrain-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no scratch folder");
    }
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::string& path) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  return all.str();
}

/// Little-endian, byte by byte.
inline std::string little_endian(std::uint64_t value, int num_bytes) {
  std::string bytes;
  for (int i = 0; i < num_bytes; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  return bytes;
}

inline std::string tokens_as_bytes(const std::vector<std::int64_t>& tokens, int bytes_per_token) {
  std::string bytes;
  for (const std::int64_t token : tokens) {
    bytes += little_endian(static_cast<std::uint64_t>(token), bytes_per_token);
  }
  return bytes;
}

/// A Megatron .idx, one sequence a document, written from the published layout.
inline std::string megatron_index_bytes(int type_code,
                                        int bytes_per_token,
                                        const std::vector<std::int64_t>& lengths) {
  std::string idx("MMIDIDX\0\0", 9);
  idx += little_endian(1, 8);
  idx += little_endian(static_cast<std::uint64_t>(type_code), 1);
  idx += little_endian(lengths.size(), 8);
  idx += little_endian(lengths.size() + 1, 8);
  for (const std::int64_t length : lengths) {
    idx += little_endian(static_cast<std::uint64_t>(length), 4);
  }
  std::int64_t offset = 0;
  for (const std::int64_t length : lengths) {
    idx += little_endian(static_cast<std::uint64_t>(offset), 8);
    offset += length * bytes_per_token;
  }
  for (std::size_t d = 0; d <= lengths.size(); ++d) {
    idx += little_endian(d, 8);
  }
  return idx;
}

/// llm.c: 256 int32 of header, then the tokens.
inline std::string llmc_bytes(int magic,
                              int version,
                              std::int64_t num_tokens,
                              const std::string& tokens) {
  std::string bytes = little_endian(static_cast<std::uint64_t>(magic), 4) +
                      little_endian(static_cast<std::uint64_t>(version), 4) +
                      little_endian(static_cast<std::uint64_t>(num_tokens), 4);
  bytes.resize(1024, '\0');
  return bytes + tokens;
}

}  // namespace dstrain::test
