// Reads the file itself; everything that is not even JSON gets a sentence of its own.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>

#include "engine/base/regular_file.h"
#include "engine/config/json_text.h"

namespace dstrain {
namespace {

constexpr std::uintmax_t kMaxBytes = 16U << 20U;

std::string read_text(const std::string& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (std::filesystem::is_directory(status)) {
    throw_config_error(file, "", "is a folder; expected a JSON file");
  }
  // A config is read more than once, by this process and by every rank, so a pipe will not do.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw_config_error(file, "",
                       fmt::format("{}; expected a JSON file", open_regular_file(file).why));
  }
  if (std::filesystem::is_regular_file(status)) {
    const auto bytes = std::filesystem::file_size(file, error);
    if (!error && bytes > kMaxBytes) {
      throw_config_error(
          file, "",
          fmt::format("has {} bytes; a config is a JSON file of at most {}", bytes, kMaxBytes));
    }
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw_config_error(file, "", fmt::format("cannot open: {}", std::strerror(errno)));
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) throw_config_error(file, "", "cannot be read");
  return text;
}

/// A first line like `key: value` or `---` with no brace before it.
bool looks_like_yaml(const std::string& file, const std::string& text) {
  if (file.ends_with(".yaml") || file.ends_with(".yml") || text.starts_with("---")) return true;
  const std::size_t colon = text.find(':');
  return colon != std::string::npos && colon > 0 &&
         std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(colon), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_';
         });
}

}  // namespace

std::string read_json_text(const std::string& file) {
  std::string text = read_text(file);
  if (text.empty()) throw_config_error(file, "", "is empty; expected a JSON object {…}");
  const std::size_t control =
      static_cast<std::size_t>(std::find_if(text.begin(), text.end(),
                                            [](char c) {
                                              return static_cast<unsigned char>(c) < 0x20 &&
                                                     c != '\n' && c != '\r' && c != '\t';
                                            }) -
                               text.begin());
  if (control < text.size()) {
    throw_config_error(file, "",
                       fmt::format("is not a text file (byte 0x{:02x} at offset {}); expected JSON",
                                   static_cast<unsigned char>(text[control]), control));
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] != '{' && looks_like_yaml(file, text)) {
    throw_config_error(file, "", "looks like YAML; a config is JSON: {\"key\": value, …}");
  }
  return text;
}

JsonNode read_json_file(const std::string& file, ConfigProblems* problems) {
  return parse_json_document(read_json_text(file), file, problems);
}

}  // namespace dstrain
