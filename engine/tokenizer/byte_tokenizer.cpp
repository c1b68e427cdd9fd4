#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/tokenizer/tokenizer.h"

namespace dstrain {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocab_size() const override { return 256; }
  [[nodiscard]] std::optional<std::int32_t> beginning_of_text() const override { return {}; }
  [[nodiscard]] std::optional<std::int32_t> end_of_text() const override { return {}; }

  void encode_part(std::string_view text,
                   TextPlace /*place*/,
                   std::vector<std::int32_t>& ids) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const std::int32_t id : ids) {
      if (id < 0 || id > 255) {
        throw ConfigError(fmt::format("id {} is not a byte", id));
      }
      text += static_cast<char>(static_cast<unsigned char>(id));
    }
    return text;
  }

  [[nodiscard]] std::size_t length_to_cut(std::string_view text) const override {
    return text.size();
  }
  [[nodiscard]] std::size_t longest_text() const override { return std::size_t{4} << 20; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace dstrain
