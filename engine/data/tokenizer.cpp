#include "engine/data/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "engine/base/regular_file.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

constexpr std::string_view kSentencePiecePrefix = "sentencepiece:";

class Bytes final : public Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocab_size() const override { return 256; }
  [[nodiscard]] std::optional<std::int32_t> beginning_of_text() const override { return {}; }
  [[nodiscard]] std::optional<std::int32_t> end_of_text() const override { return {}; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
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
  [[nodiscard]] bool is_slow() const override { return false; }
};

class SentencePiece final : public Tokenizer {
 public:
  /// `name` is what an error calls the model.
  SentencePiece(const std::string& serialized, const std::string& name) {
    if (const auto status = processor_.LoadFromSerializedProto(serialized); !status.ok()) {
      throw ConfigError(
          fmt::format("{}: not a SentencePiece model: {}", name, status.error_message()));
    }
    std::vector<std::int32_t> together;
    std::vector<std::int32_t> apart;
    encode("one\ntwo\n", together);
    encode("one\n", apart);
    encode("two\n", apart);
    lines_are_independent_ = together == apart;
  }

  [[nodiscard]] std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] std::optional<std::int32_t> beginning_of_text() const override {
    return id_or_none(processor_.bos_id());
  }
  [[nodiscard]] std::optional<std::int32_t> end_of_text() const override {
    return id_or_none(processor_.eos_id());
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::vector<int> own;
    const auto status = processor_.Encode({text.data(), text.size()}, &own);
    if (!status.ok()) {
      throw ConfigError(fmt::format("SentencePiece cannot encode: {}", status.error_message()));
    }
    ids.insert(ids.end(), own.begin(), own.end());
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= vocab_size()) {
        throw ConfigError(fmt::format("id {} is not in the vocabulary of {}", id, vocab_size()));
      }
    }
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) {
      throw ConfigError(fmt::format("SentencePiece cannot decode: {}", status.error_message()));
    }
    return text;
  }

  [[nodiscard]] std::size_t length_to_cut(std::string_view text) const override {
    if (const std::size_t line_end = text.rfind('\n'); line_end != std::string_view::npos) {
      return line_end + 1;
    }
    // Back over the continuation bytes (10xxxxxx) of a character that may go on, and its first
    // byte.
    std::size_t begin = text.size();
    for (int back = 0; back < 4 && begin > 1; ++back) {
      --begin;
      if ((static_cast<unsigned char>(text[begin]) & 0xC0U) != 0x80U) {
        return begin;
      }
    }
    return text.size();  // not UTF-8 anyway
  }
  // SentencePiece takes longer than linear time: 16 KiB go 3 times as fast as 1 MiB. But a model
  // that puts a space in front of every text (LLaMA's) gives other ids for a text in pieces, so
  // there only long documents are cut.
  [[nodiscard]] std::size_t longest_text() const override {
    return lines_are_independent_ ? std::size_t{16} << 10 : std::size_t{1} << 20;
  }
  [[nodiscard]] bool is_slow() const override { return true; }

 private:
  static std::optional<std::int32_t> id_or_none(int id) {
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool lines_are_independent_ = false;
};

std::string read_whole(const std::string& model_path) {
  FileText file = read_regular_file(model_path);
  if (!file.why.empty()) {
    throw ConfigError(
        fmt::format("{}: no SentencePiece model can be read there: {}", model_path, file.why));
  }
  return std::move(file.text);
}

}  // namespace

std::string read_sentencepiece_model(const std::string& name) {
  return read_whole(name.substr(kSentencePiecePrefix.size()));
}

std::unique_ptr<Tokenizer> Tokenizer::from_sentencepiece_model(const std::string& serialized) {
  return std::make_unique<SentencePiece>(serialized, "the model just made");
}

std::unique_ptr<Tokenizer> Tokenizer::make(const std::string& name) {
  if (name == "bytes") {
    return std::make_unique<Bytes>();
  }
  if (name.starts_with(kSentencePiecePrefix)) {
    const std::string path = name.substr(kSentencePiecePrefix.size());
    return std::make_unique<SentencePiece>(read_whole(path), path);
  }
  throw ConfigError(fmt::format(
      "tokenizer \"{}\": expected bytes or sentencepiece:MODEL{}", name,
      name.ends_with(".model") ? fmt::format(", did you mean sentencepiece:{}?", name) : ""));
}

}  // namespace dstrain
