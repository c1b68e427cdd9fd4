#include "engine/data/token_file_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/config/config_error.h"
#include "engine/config/did_you_mean.h"
#include "engine/data/input/known_formats.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLlmcHeaderBytes = 1024;
constexpr std::int32_t kLlmcGpt2Magic = 20240520;
constexpr std::int32_t kLlmcLlama3Magic = 20240801;

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string without_suffix(const std::string& path, std::string_view suffix) {
  return path.ends_with(suffix) ? path.substr(0, path.size() - suffix.size()) : path;
}

/// Names the files in the folder of `prefix` that the user may have meant, the nearest first.
std::string describe_neighbours(const std::string& prefix) {
  fs::path folder = fs::path(prefix).parent_path();
  if (folder.empty()) {
    folder = ".";
  }
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return fmt::format("the folder {} does not exist", folder.string());
  }
  std::vector<std::pair<std::size_t, std::string>> names;
  const std::string wanted = fs::path(prefix).filename().string();
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".bin") || name.ends_with(".idx")) {
      names.emplace_back(edit_distance(without_suffix(name, name.substr(name.size() - 4)), wanted),
                         name);
    }
  }
  if (names.empty()) {
    return fmt::format("there is no .bin or .idx file in {}; `dstrain prepare-data` makes them",
                       folder.string());
  }
  std::sort(names.begin(), names.end());
  std::vector<std::string> nearest;
  for (const auto& [distance, name] : names) {
    if (nearest.size() < 4) {
      nearest.push_back(name);
    }
  }
  return fmt::format("nearest in {}: {}", folder.string(), fmt::join(nearest, ", "));
}

/// Recognises by its first bytes what people pass by mistake; "" for anything else.
std::string foreign_format(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const KnownFormat* format = format_of_content(text)) {
    return fmt::format("{}: {}", format->what, format->advice);
  }
  // Ids in u16 do not look like printable text for so long: even rare words have ids whose high
  // byte is a control character.
  const std::string_view head = text.substr(0, 16384);
  const auto printable = [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u >= 32 || u == '\n' || u == '\r' || u == '\t' || u == '\f';
  };
  if (head.size() >= 16 && std::all_of(head.begin(), head.end(), printable)) {
    return "text, not token ids: `dstrain prepare-data --input` turns it into token files (or it "
           "is the .bin of a Megatron pair whose .idx is missing)";
  }
  return {};
}

TokenFileLayout open_llmc(std::unique_ptr<MappedFile> file, std::int32_t magic) {
  std::array<std::int32_t, 3> header{};
  const std::int64_t num_bytes = file->num_bytes();
  if (num_bytes < kLlmcHeaderBytes) {
    throw ConfigError(fmt::format("{}: truncated: it has {} bytes, llm.c's header alone {}",
                                  file->path(), num_bytes, kLlmcHeaderBytes));
  }
  std::memcpy(header.data(), file->bytes().data(), sizeof header);
  const bool gpt2 = magic == kLlmcGpt2Magic;
  const std::int32_t version = gpt2 ? 1 : 7;
  if (header[1] != version) {
    throw ConfigError(fmt::format("{}: at byte 4: version {} of llm.c's token file, expected {}",
                                  file->path(), header[1], version));
  }
  const std::int64_t expected =
      kLlmcHeaderBytes + (gpt2 ? 2 : 4) * static_cast<std::int64_t>(header[2]);
  if (header[2] < 0 || num_bytes != expected) {
    throw ConfigError(
        fmt::format("{}: {}: it has {} bytes, its llm.c header (byte 8) says {} tokens = {} bytes",
                    file->path(), num_bytes < expected ? "truncated" : "has bytes past its end",
                    num_bytes, header[2], expected));
  }
  return {std::move(file), "llm.c", gpt2 ? TokenType::kU16 : TokenType::kI32, kLlmcHeaderBytes,
          header[2]};
}

TokenFileLayout open_single(const std::string& path) {
  auto file = std::make_unique<MappedFile>(MappedFile::open<ConfigError>(path));
  std::int32_t magic = 0;
  if (file->num_bytes() >= 4) {
    std::memcpy(&magic, file->bytes().data(), sizeof magic);
  }
  if (magic == kLlmcGpt2Magic || magic == kLlmcLlama3Magic) {
    return open_llmc(std::move(file), magic);
  }
  if (magic > 20240300 && magic < 20241300) {
    throw ConfigError(fmt::format(
        "{}: at byte 0: {} is the magic number of another kind of llm.c file; token files have {} "
        "or {}",
        path, magic, kLlmcGpt2Magic, kLlmcLlama3Magic));
  }
  if (const std::string meaning = foreign_format(file->bytes()); !meaning.empty()) {
    throw ConfigError(fmt::format("{}: this is {}", path, meaning));
  }
  const std::int64_t num_bytes = file->num_bytes();
  if (num_bytes % 2 != 0) {
    throw ConfigError(fmt::format(
        "{}: {} bytes is not a whole number of u16 token ids (there is neither {}.idx, which would "
        "make it Megatron's, nor llm.c's header): truncated or foreign",
        path, num_bytes, without_suffix(path, ".bin")));
  }
  return {std::move(file), "nanoGPT", TokenType::kU16, 0, num_bytes / 2};
}

TokenFileLayout open_pair(const std::string& stem) {
  const std::string bin_path = stem + ".bin";
  std::error_code error;
  if (!fs::exists(bin_path, error)) {
    throw ConfigError(
        fmt::format("{}: is missing, though its index {}.idx is there", bin_path, stem));
  }
  const auto index = MappedFile::open<ConfigError>(stem + ".idx");
  auto bin = std::make_unique<MappedFile>(MappedFile::open<ConfigError>(bin_path));
  const std::int64_t bin_bytes = bin->num_bytes();
  // The index's own errors come first: they say more than that a hash differs.
  const MegatronIndex found = read_megatron_index(index, bin_path, bin->num_bytes());
  return {std::move(bin),   "Megatron",
          found.type,       0,
          found.num_tokens, TokenHashes::open(stem, index, bin_bytes)};
}

/// A Megatron pair's index, or the file itself.
std::string path_of(const std::string& prefix) {
  const std::string stem = without_suffix(without_suffix(prefix, ".idx"), ".bin");
  for (const std::string& path : {stem + ".idx", prefix, stem + ".bin"}) {
    if (is_file(path)) {
      return path;
    }
  }
  throw ConfigError(
      fmt::format("{}: no token file: looked for {}.idx with {}.bin, {} and {}.bin; {}", prefix,
                  stem, stem, prefix, stem, describe_neighbours(stem)));
}

}  // namespace

TokenFileLayout find_token_file(const std::string& prefix) {
  const std::string path = path_of(prefix);
  return path.ends_with(".idx") ? open_pair(without_suffix(path, ".idx")) : open_single(path);
}

void require_token_file(const std::string& prefix) {
  static_cast<void>(path_of(prefix));
}

}  // namespace dstrain
