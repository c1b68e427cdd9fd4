#include "engine/checkpoint/foreign/huggingface/tokenizer_files.h"

#include <cstdint>

#include <nlohmann/json.hpp>

#include "engine/tokenizer/byte_characters.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

/// The next varint of a protobuf message; 0 at its end.
std::uint64_t take_varint(std::string_view& message) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; !message.empty() && shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(message.front());
    message.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if ((byte & 0x80U) == 0) {
      break;
    }
  }
  return value;
}

/// Calls `visit` with the number of each field, and its value or its bytes.
template <typename Visit>
void for_each_field(std::string_view message, Visit&& visit) {
  while (!message.empty()) {
    const std::uint64_t tag = take_varint(message);
    std::uint64_t value = 0;
    std::string_view bytes;
    switch (tag & 7U) {
      case 0:
        value = take_varint(message);
        break;
      case 1:
        bytes = message.substr(0, 8);
        break;
      case 2: {
        const std::uint64_t length = take_varint(message);
        bytes = message.substr(0, length);
        break;
      }
      case 5:
        bytes = message.substr(0, 4);
        break;
      default:
        return;  // no protobuf
    }
    message.remove_prefix(bytes.size());
    visit(tag >> 3U, value, bytes);
  }
}

/// Whether a SentencePiece model puts a space in front of every text (LLaMA's does, ours do not):
/// NormalizerSpec.add_dummy_prefix, true if absent.
bool adds_prefix_space(std::string_view model) {
  constexpr std::uint64_t kNormalizerSpec = 3;
  constexpr std::uint64_t kAddDummyPrefix = 3;
  bool adds = true;
  for_each_field(model, [&](std::uint64_t field, std::uint64_t, std::string_view spec) {
    if (field == kNormalizerSpec) {
      for_each_field(spec, [&](std::uint64_t inner, std::uint64_t value, std::string_view) {
        adds = inner == kAddDummyPrefix ? value != 0 : adds;
      });
    }
  });
  return adds;
}

}  // namespace

std::string sentencepiece_config(std::string_view model) {
  return Json{{"tokenizer_class", "LlamaTokenizer"},
              {"add_prefix_space", adds_prefix_space(model)},
              {"add_bos_token", false},
              {"add_eos_token", false},
              {"bos_token", "<s>"},
              {"eos_token", "</s>"},
              {"unk_token", "<unk>"},
              {"legacy", false},
              {"clean_up_tokenization_spaces", false}}
             .dump(2) +
         "\n";
}

std::string byte_tokenizer() {
  Json vocabulary = Json::object();
  const auto& characters = byte_characters();
  for (std::size_t byte = 0; byte < characters.size(); ++byte) {
    vocabulary[characters[byte]] = byte;
  }
  const Json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", false},
                        {"use_regex", false}};
  const Json tokenizer{{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", Json::array()},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level},
                       {"post_processor", nullptr},
                       {"decoder", byte_level},
                       {"model",
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"vocab", vocabulary},
                         {"merges", Json::array()}}}};
  return tokenizer.dump(1) + "\n";
}

std::string plain_tokenizer_config() {
  return Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"clean_up_tokenization_spaces", false}}
             .dump(2) +
         "\n";
}

}  // namespace dstrain
