#include "cmd/inspect/inspected_text.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

constexpr const char* kMark = "✗";

/// A piece of text of its own; bytes that are no characters alone are written as such.
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

/// "104 ‹h›  105 ‹i›", in lines of about 96 columns. On a terminal ids are dim and texts in two
/// colours in turn, or dim too.
std::string tokens_text(const Tokenizer& tokenizer, const InspectedStretch& stretch, bool colours) {
  constexpr std::size_t kColumns = 96;
  std::string text = "  │ ";
  std::size_t column = 0;
  bool odd = false;
  for (std::size_t i = 0; i < stretch.ids.size(); ++i) {
    const std::int32_t id = stretch.ids[i];
    const std::string piece = piece_of(tokenizer, id);
    const bool is_marked = stretch.predicts[i] == 0 && !colours;
    const std::size_t width = fmt::formatted_size("{} ‹{}›  ", id, piece) - 4 + (is_marked ? 1 : 0);
    if (column > 0) {
      const bool has_room = column + width <= kColumns;
      text += has_room ? "  " : "\n  │ ";
      column = has_room ? column : 0;
    }
    if (!colours) {
      text += fmt::format("{} ‹{}›{}", id, piece, is_marked ? kMark : "");
    } else if (stretch.predicts[i] == 0) {
      text += fmt::format("\x1b[2m{} {}\x1b[0m", id, piece);
    } else {
      text += fmt::format("\x1b[2m{}\x1b[0m \x1b[{}m{}\x1b[0m", id, odd ? 36 : 33, piece);
    }
    column += width;
    odd = !odd;
  }
  return text + "\n";
}

/// Several lines of text, each behind a bar; nothing in it that a terminal would act on.
void append_lines(std::string& out, std::string_view text, std::string_view colour) {
  constexpr std::string_view kPlain = "\x1b[0m";
  out += colour;
  for (const char c : text) {
    if (c == '\n') {
      out += colour.empty() ? "\n  │ " : fmt::format("{}\n  │ {}", kPlain, colour);
    } else {
      out += visible(std::string_view(&c, 1));
    }
  }
  out += colour.empty() ? "" : kPlain;
}

/// A sample of fine-tuning data as it reads: what is trained in green, or between « and », and the
/// rest dim.
std::string sample_text(const Tokenizer& tokenizer, const InspectedStretch& stretch, bool colours) {
  std::string out = "  │ ";
  for (std::size_t i = 0; i < stretch.ids.size();) {
    // A token is trained where the one in front of it predicts something.
    const auto is_trained = [&](std::size_t at) { return at > 0 && stretch.predicts[at - 1] != 0; };
    const bool trained = is_trained(i);
    std::string text;
    while (i < stretch.ids.size() && is_trained(i) == trained) {
      std::size_t end = i;  // of tokens that are text, which decode together
      while (end < stretch.ids.size() && is_trained(end) == trained &&
             tokenizer.special_text(stretch.ids[end]).empty()) {
        ++end;
      }
      text += tokenizer.decode(std::span(stretch.ids).subspan(i, end - i));
      i = end;
      if (i < stretch.ids.size() && is_trained(i) == trained) {
        text += tokenizer.special_text(stretch.ids[i]);
        ++i;
      }
    }
    out += trained && !colours ? "«" : "";
    append_lines(out, text, !colours ? "" : trained ? "\x1b[32m" : "\x1b[2m");
    out += trained && !colours ? "»" : "";
  }
  return out + "\n";
}

std::string stretch_text(const InspectedStretch& stretch,
                         const InspectedRun& run,
                         const InspectedTextOptions& options) {
  std::string title;
  if (stretch.fills_up) {
    title = "filled up";
  } else if (stretch.document) {
    title = fmt::format("document {}{}", grouped(*stretch.document),
                        stretch.first == 0
                            ? ", from its beginning"
                            : fmt::format(", from its token {}", grouped(stretch.first)));
  }
  if (run.rules.data.document_attention && !stretch.fills_up) {
    title += fmt::format("{}positions {} to {}", title.empty() ? "" : "; ",
                         stretch.positions.front(), stretch.positions.back());
  }
  std::string text = title.empty() ? "" : fmt::format("  ┌ {}\n", title);
  if (run.rules.data.samples && stretch.fills_up) {
    return fmt::format("  ┌ filled up with {}\n", counted(std::ssize(stretch.ids), "token"));
  }
  text += run.rules.data.samples ? sample_text(*run.tokenizer.tokenizer, stretch, options.colours)
                                 : tokens_text(*run.tokenizer.tokenizer, stretch, options.colours);
  if (stretch.document) {
    text += stretch.ends_document ? "  └ ends\n" : "  ┆ continues\n";
  }
  return text;
}

std::int64_t masked_of(const InspectedSample& sample) {
  std::int64_t masked = 0;
  for (const InspectedStretch& stretch : sample.stretches) {
    masked += std::count(stretch.predicts.begin(), stretch.predicts.end(), 0);
  }
  return masked;
}

std::string title_of(const InspectedSample& sample, const InspectedRun& run) {
  const std::int64_t sequence = run.rules.data.sequence_length;
  std::string title;
  if (run.sources[static_cast<std::size_t>(sample.source)].packing) {
    std::int64_t documents = 0;
    std::int64_t tokens = 0;
    for (const InspectedStretch& stretch : sample.stretches) {
      documents += stretch.fills_up ? 0 : 1;
      tokens += stretch.fills_up ? 0 : std::ssize(stretch.ids);
    }
    title = fmt::format("{} in {} of {} tokens", counted(documents, "document"), tokens, sequence);
  } else {
    title =
        fmt::format("tokens {} to {}", grouped(sample.begin), grouped(sample.begin + sequence - 1));
  }
  if (run.sources.size() > 1) {
    title += " of " + run.sources[static_cast<std::size_t>(sample.source)].prefix;
  }
  if (const std::int64_t masked = masked_of(sample); masked > 0 && run.rules.data.samples) {
    title += fmt::format("; {} trained", sequence - masked);
  } else if (masked > 0) {
    title += fmt::format("; {} of {} predict nothing", masked, sequence);
  }
  return title;
}

/// One line that says what the config asks for.
std::string rules_text(const SampleRules& rules, const std::string& config) {
  const DataConfig& data = rules.data;
  std::string text = fmt::format("{}: samples of {} tokens", config, grouped(data.sequence_length));
  if (data.document_attention) {
    text += "; a token sees its own document alone, and positions begin anew in each";
  }
  if (data.mask_document_ends) {
    text += fmt::format("; token {}, which ends a document, predicts nothing",
                        data.end_of_document.value_or(-1));
  }
  if (rules.curriculum.enabled) {
    text += fmt::format("; early steps take the first tokens of each, {} in step 1",
                        std::min(rules.curriculum.length_at(1), data.sequence_length));
  }
  return text + "\n";
}

}  // namespace

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

std::string first_sample_text(const InspectedRun& run, bool colours) {
  if (run.samples.empty() || run.samples.front().stretches.empty()) return "";
  const InspectedStretch& first = run.samples.front().stretches.front();
  return fmt::format("sample      {}\n{}",
                     colours ? "green texts are trained, dim ones are context"
                             : "« » enclose what is trained; the rest is context",
                     sample_text(*run.tokenizer.tokenizer, first, colours));
}

std::string inspected_text(const InspectedRun& run, const InspectedTextOptions& options) {
  std::string text;
  for (const InspectedSource& source : run.sources) {
    text += fmt::format(
        "{}: {} tokens{}; tokenizer {}\n", source.prefix, grouped(source.tokens),
        source.documents ? fmt::format(" in {} documents", grouped(*source.documents)) : "",
        run.tokenizer.name);
    if (const auto& packing = source.packing) {
      text +=
          fmt::format("packed into {} of {} tokens, {:.2f} % full; {} longer than one and cut\n",
                      counted(packing->samples, "sample"), grouped(run.rules.data.sequence_length),
                      100.0 * packing->fill, counted(packing->cut_documents, "document"));
    }
  }
  if (!options.config.empty()) {
    text += rules_text(run.rules, options.config);
  }
  if (run.rules.data.samples) {
    text += options.colours ? "green texts are trained, dim ones are context\n"
                            : "« » enclose what is trained; the rest is context\n";
  } else if (std::any_of(run.samples.begin(), run.samples.end(),
                         [](const InspectedSample& sample) { return masked_of(sample) > 0; })) {
    text += options.colours ? "dim texts predict nothing\n"
                            : fmt::format("{} behind tokens that predict nothing\n", kMark);
  }
  for (std::size_t i = 0; i < run.samples.size(); ++i) {
    text += fmt::format("\nsample {}: {}\n", i, title_of(run.samples[i], run));
    for (const InspectedStretch& stretch : run.samples[i].stretches) {
      text += stretch_text(stretch, run, options);
    }
  }
  return text;
}

}  // namespace dstrain
