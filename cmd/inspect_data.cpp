#include "cmd/inspect_data.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/amount_text.h"
#include "engine/config/config_error.h"
#include "engine/data/document_index.h"
#include "engine/data/document_packing.h"
#include "engine/data/sampler.h"
#include "engine/data/token_dataset.h"
#include "engine/generate/find_tokenizer.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Tokens of one sample that belong to one document.
struct Stretch {
  std::optional<std::int64_t> document{};  ///< none: the files do not tell documents apart
  std::int64_t first = 0;                  ///< of the document's tokens
  bool ends_document = false;
  std::vector<std::int32_t> ids{};
};

struct Sample {
  std::int64_t begin = 0;  ///< of the file's tokens; where documents are packed, the first one's
  std::vector<Stretch> stretches{};
};

/// The request's files, opened, with what is needed to show their samples.
struct Shown {
  std::string prefix;
  std::unique_ptr<TokenFile> file;
  std::unique_ptr<DocumentIndex> index;      ///< nullptr: nothing tells documents apart
  std::unique_ptr<DocumentPacking> packing;  ///< nullptr: a sample is a piece of the stream
  std::vector<Sample> samples{};
};

std::string prefix_of(const std::string& dataset) {
  std::error_code ignored;
  if (fs::is_directory(dataset, ignored)) {
    return (fs::path(dataset) / "train").string();
  }
  return dataset.ends_with(".bin") || dataset.ends_with(".idx")
             ? dataset.substr(0, dataset.size() - 4)
             : dataset;
}

std::vector<Stretch> stretches_of(std::int64_t begin,
                                  std::span<const std::int32_t> ids,
                                  const DocumentIndex* index) {
  if (index == nullptr) {
    return {{.first = begin, .ids = {ids.begin(), ids.end()}}};
  }
  std::vector<Stretch> stretches;
  while (!ids.empty()) {
    const std::int64_t document = index->document_of(begin);
    const std::int64_t left = index->first_token(document + 1) - begin;
    const auto count = std::min(ids.size(), static_cast<std::size_t>(left));
    stretches.push_back({.document = document,
                         .first = begin - index->first_token(document),
                         .ends_document = static_cast<std::int64_t>(count) == left,
                         .ids = {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)}});
    ids = ids.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
  return stretches;
}

/// Makes text fit for one line, with nothing in it that a terminal would act on.
std::string visible(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      shown += "\\n";
    } else if (c == '\t') {
      shown += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += c;
    }
  }
  return shown;
}

/// The token's piece of text by itself; bytes that are not whole characters are written as bytes.
std::string piece_of(const Tokenizer& tokenizer, std::int32_t id) {
  if (id >= tokenizer.vocab_size()) {
    return "(document's end)";
  }
  const std::string text = tokenizer.decode(std::span(&id, 1));
  const bool is_half =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore) !=
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string shown;
  if (is_half) {
    for (const char c : text) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    return shown;
  }
  return visible(text);
}

std::string text_of(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::vector<std::int32_t> known;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(known),
               [&](std::int32_t id) { return id < tokenizer.vocab_size(); });
  return tokenizer.decode(known);
}

/// "104 h   105 i", in lines of about 96 columns; on a terminal ids dim, texts in two colours in
/// turn.
std::string tokens_text(const Tokenizer& tokenizer, const Stretch& stretch, bool colours) {
  constexpr std::size_t kColumns = 96;
  std::string text = "  │ ";
  std::size_t column = 0;
  bool odd = false;
  for (const std::int32_t id : stretch.ids) {
    const std::string piece = piece_of(tokenizer, id);
    const std::size_t width = fmt::formatted_size("{} ‹{}›  ", id, piece) - 4;
    if (column > 0) {
      const bool has_room = column + width <= kColumns;
      text += has_room ? "  " : "\n  │ ";
      column = has_room ? column : 0;
    }
    text += colours ? fmt::format("\x1b[2m{}\x1b[0m \x1b[{}m{}\x1b[0m", id, odd ? 36 : 33, piece)
                    : fmt::format("{} ‹{}›", id, piece);
    column += width;
    odd = !odd;
  }
  return text + "\n";
}

std::string title_of(const Sample& sample, const Shown& shown, const InspectRequest& request) {
  if (shown.packing == nullptr) {
    return fmt::format("tokens {} to {}", grouped(sample.begin),
                       grouped(sample.begin + request.sequence - 1));
  }
  std::size_t tokens = 0;
  for (const Stretch& stretch : sample.stretches) {
    tokens += stretch.ids.size();
  }
  return fmt::format("{} in {} of {} tokens", counted(std::ssize(sample.stretches), "document"),
                     tokens, request.sequence);
}

std::string as_text(const Shown& shown,
                    const FoundTokenizer& found,
                    const InspectRequest& request) {
  std::string text = fmt::format(
      "{}: {} tokens{}; tokenizer {}\n", shown.prefix, grouped(shown.file->num_tokens()),
      shown.index == nullptr
          ? std::string()
          : fmt::format(" in {} documents", grouped(shown.index->num_documents())),
      found.name);
  if (const DocumentPacking* const packing = shown.packing.get()) {
    text += fmt::format("packed into {} of {} tokens, {:.2f} % full; {} longer than one and cut\n",
                        counted(packing->num_sequences(), "sample"), grouped(request.sequence),
                        100.0 * packing->fill(), counted(packing->num_cut(), "document"));
  }
  for (std::size_t i = 0; i < shown.samples.size(); ++i) {
    const Sample& sample = shown.samples[i];
    text += fmt::format("\nsample {}: {}\n", i, title_of(sample, shown, request));
    for (const Stretch& stretch : sample.stretches) {
      if (stretch.document) {
        text += fmt::format("  ┌ document {}{}\n", grouped(*stretch.document),
                            stretch.first == 0
                                ? ", from its beginning"
                                : fmt::format(", from its token {}", grouped(stretch.first)));
      }
      text += tokens_text(*found.tokenizer, stretch, request.colours);
      if (stretch.document) {
        text += stretch.ends_document ? "  └ ends\n" : "  ┆ continues\n";
      }
    }
  }
  return text;
}

std::string as_json(const Shown& shown,
                    const FoundTokenizer& found,
                    const InspectRequest& request) {
  using Json = nlohmann::ordered_json;
  Json json = {{"prefix", shown.prefix},
               {"tokenizer", found.name},
               {"tokens", shown.file->num_tokens()},
               {"documents", shown.index == nullptr ? Json() : Json(shown.index->num_documents())},
               {"sequence_length", request.sequence}};
  if (const DocumentPacking* const packing = shown.packing.get()) {
    json["packing"] = {{"samples", packing->num_sequences()},
                       {"cut_documents", packing->num_cut()},
                       {"fill", packing->fill()}};
  }
  json["samples"] = Json::array();
  for (const Sample& sample : shown.samples) {
    Json parts = Json::array();
    for (const Stretch& stretch : sample.stretches) {
      parts.push_back({{"document", stretch.document ? Json(*stretch.document) : Json()},
                       {"first_token", stretch.first},
                       {"ends", stretch.ends_document},
                       {"ids", stretch.ids},
                       {"text", text_of(*found.tokenizer, stretch.ids)}});
    }
    json["samples"].push_back({{"begin", sample.begin}, {"documents", parts}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string inspect_data(const InspectRequest& request) {
  const std::string prefix = prefix_of(request.dataset);
  Shown shown{.prefix = prefix,
              .file = TokenFile::open(prefix, std::numeric_limits<std::int32_t>::max()),
              .index = DocumentIndex::open(prefix),
              .packing = {}};
  const std::int64_t tokens = shown.file->num_tokens();
  if (request.packed && shown.index == nullptr) {
    throw ConfigError(
        fmt::format("--pack: there is no {}.idx, which would say where documents begin", prefix));
  }
  if (request.packed && request.sequence > kLongestPackedSequence) {
    throw ConfigError(fmt::format("--sequence-length {}: documents are packed into at most {}",
                                  request.sequence, kLongestPackedSequence));
  }
  if (request.sequence < 1 || (!request.packed && tokens <= request.sequence)) {
    throw ConfigError(fmt::format(
        "--sequence-length {}: {} has {} tokens, of which a sample takes one more than its length",
        request.sequence, prefix, tokens));
  }
  const fs::path folder = fs::path(prefix).parent_path();
  const FoundTokenizer found =
      find_tokenizer(request.tokenizer, folder, {.compute = {}, .data_folders = {folder}});
  if (request.packed) {
    shown.packing =
        std::make_unique<DocumentPacking>(DocumentIndex::open(prefix), request.sequence);
  }
  const Sampler sampler(
      {shown.packing ? shown.packing->num_sequences() : (tokens - 1) / request.sequence}, {1.0},
      request.seed);
  const std::int64_t samples = std::min(request.samples, sampler.sequences_per_epoch());
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t index = sampler.draw(i).index;
    const std::vector<DocumentPacking::Piece> pieces =
        shown.packing ? shown.packing->pieces(index)
                      : std::vector<DocumentPacking::Piece>{
                            {.begin = index * request.sequence, .size = request.sequence}};
    Sample sample{.begin = pieces.front().begin};
    for (const DocumentPacking::Piece& piece : pieces) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(piece.size));
      shown.file->read(piece.begin, ids);
      for (Stretch& stretch : stretches_of(piece.begin, ids, shown.index.get())) {
        sample.stretches.push_back(std::move(stretch));
      }
    }
    shown.samples.push_back(std::move(sample));
  }
  return (request.json ? as_json : as_text)(shown, found, request);
}

}  // namespace dstrain
