// Encodes texts for scripts/check_tokenizers, which holds the ids to those of the tokenizers that
// these files were made for.
//   encode_texts TOKENIZER
//     Texts on stdin, each after its length in bytes (uint32); for each on stdout: the number of
//     ids, the ids (int32), then the length of the text that they decode to, and that text.
//   encode_texts TOKENIZER --time FILE
//     Encodes the file in pieces, as prepare-data would, and prints seconds, ids and bytes.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "engine/base/regular_file.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain {
namespace {

bool read_bytes(void* to, std::size_t count) {
  return std::fread(to, 1, count, stdin) == count;
}

void write_bytes(const void* from, std::size_t count) {
  std::fwrite(from, 1, count, stdout);
}

void answer(const Tokenizer& tokenizer) {
  std::string text;
  std::vector<std::int32_t> ids;
  for (std::uint32_t bytes = 0; read_bytes(&bytes, sizeof bytes);) {
    text.resize(bytes);
    if (!read_bytes(text.data(), bytes)) return;
    ids.clear();
    tokenizer.encode(text, ids);
    const auto count = static_cast<std::uint32_t>(ids.size());
    write_bytes(&count, sizeof count);
    write_bytes(ids.data(), ids.size() * sizeof ids[0]);
    const std::string decoded = as_utf8(tokenizer.decode(ids));
    const auto length = static_cast<std::uint32_t>(decoded.size());
    write_bytes(&length, sizeof length);
    write_bytes(decoded.data(), length);
    std::fflush(stdout);
  }
}

void time_file(const Tokenizer& tokenizer, const char* path) {
  const std::string text = read_regular_file(path).text;
  const auto began = std::chrono::steady_clock::now();
  std::size_t count = 0;
  std::vector<std::int32_t> ids;
  auto place = TextPlace::kBegins;
  for (std::string_view left = text; !left.empty(); place = TextPlace::kContinues) {
    std::string_view piece = left.substr(0, tokenizer.longest_text());
    if (piece.size() < left.size()) piece = piece.substr(0, tokenizer.length_to_cut(piece));
    left.remove_prefix(piece.size());
    ids.clear();
    tokenizer.encode_part(piece, place, ids);
    count += ids.size();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  fmt::print("{} {} {}\n", seconds.count(), count, text.size());
}

}  // namespace
}  // namespace dstrain

int main(int count, char** arguments) {
  try {
    const auto tokenizer = dstrain::Tokenizer::make(count > 1 ? arguments[1] : "");
    if (count == 4 && std::string_view(arguments[2]) == "--time") {
      dstrain::time_file(*tokenizer, arguments[3]);
    } else {
      dstrain::answer(*tokenizer);
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    fmt::print(stderr, "encode_texts: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
