// The token files of a run, as the user wrote them: part of config.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dstrain {

struct DataSource {
  std::string prefix;   ///< of a .bin/.idx pair, or a nanoGPT / llm.c .bin file, or JSON lines
  double weight = 1.0;  ///< relative share, of what weights_by says

  bool operator==(const DataSource&) const = default;
};

/// The way in which sequences are made of documents.
enum class DocumentPack : std::uint8_t {
  kNone,  ///< "none": the stream of all tokens, cut where a sequence is full; of samples, one each
  kBestFit  ///< "best_fit": documents, of which only those longer than a sequence are cut
};

/// The part of a conversation that is trained.
enum class TrainOn : std::uint8_t {
  kAssistant,  ///< "assistant": all turns of the assistant
  kLastTurn,   ///< "last_turn": the last of them
  kAll         ///< "all": every token
};

/// Where an answer begins.
enum class AnswersBegin : std::uint8_t {
  kPrompt,   ///< "prompt": behind what asks the model for it
  kQuestion  ///< "question": behind the question, with what the template writes in front of it
};

/// How samples are made of JSON lines of conversations, pairs, … (engine/chat).
struct SampleConfig {
  std::string tokenizer;      ///< as --tokenizer names one; empty: the model's folder
  std::string chat_template;  ///< a file or a folder; empty: the tokenizer's folder
  TrainOn train_on = TrainOn::kAssistant;
  AnswersBegin answers_begin = AnswersBegin::kPrompt;
  std::string stop_token;  ///< a text that ends answers, besides the model's own; empty: none

  bool operator==(const SampleConfig&) const = default;
};

/// What becomes of a sample that is longer than a sequence.
enum class LongSamples : std::uint8_t {
  kCut,  ///< "cut": its first tokens make a sequence
  kDrop  ///< "drop": it is left out
};

/// The kind of the samples, which follows from what is trained.
enum class SampleKind : std::uint8_t {
  kPlain,  ///< each is trained as it stands
  kPairs,  ///< a chosen answer, and behind it one that was rejected, which share a sequence
  kRated   ///< an answer that was liked, or one that was not
};

/// The unit that sources share out by their weights.
enum class WeightUnit : std::uint8_t { kSamples, kTokens };

/// The most tokens of a sequence that documents can be packed into.
inline constexpr std::int64_t kLongestPackedSequence = std::int64_t{1} << 24;

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<DataSource> validation;  ///< may be empty: no evaluation
  std::int64_t sequence_length = 0;    ///< tokens of a sample
  /// A token sees only its own document, and its position is the one within it.
  bool document_attention = false;
  /// The token that ends a document does not have to predict the next document's first one.
  bool mask_document_ends = false;
  /// The id after each document; absent: the one that dataset.json beside the token files names.
  std::optional<std::int32_t> end_of_document{};
  DocumentPack pack = DocumentPack::kNone;
  /// The token files hold samples of fine-tuning data, of whose tokens some are trained.
  bool samples = false;
  LongSamples long_samples = LongSamples::kCut;
  SampleKind sample_kind = SampleKind::kPlain;
  bool chosen_prompts = false;  ///< of pairs, the tokens of the chosen one's prompt are targets too
  SampleConfig sample{};        ///< of sources that are JSON lines
  WeightUnit weights_by = WeightUnit::kSamples;

  bool operator==(const DataConfig&) const = default;
};

}  // namespace dstrain
