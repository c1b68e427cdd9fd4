#include "engine/data/prepare_summary.h"

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

nlohmann::ordered_json to_json(const PreparedSplit& split) {
  return {{"prefix", split.prefix},         {"documents", split.documents},
          {"text_bytes", split.text_bytes}, {"tokens", split.tokens},
          {"bin_bytes", split.bin_bytes},   {"content", split.content}};
}

}  // namespace

std::string to_json(const PrepareSummary& summary) {
  nlohmann::ordered_json json = {{"format", "megatron"},
                                 {"tokenizer", summary.tokenizer},
                                 {"tokenizer_identity", to_json(summary.identity)},
                                 {"vocab_size", summary.vocab_size},
                                 {"token_type", summary.token_type},
                                 {"append_eod", nullptr},
                                 {"train", to_json(summary.train)},
                                 {"validation", nullptr},
                                 {"files_found", summary.files_found},
                                 {"skipped",
                                  {{"duplicates", summary.duplicates},
                                   {"binary", summary.binary},
                                   {"empty", summary.empty},
                                   {"hidden", summary.hidden},
                                   {"folder_links", summary.folder_links},
                                   {"special", summary.special},
                                   {"excluded", summary.excluded},
                                   {"bad_lines", summary.bad_lines}}},
                                 {"bad_lines", summary.bad_lines_named},
                                 {"unreadable", summary.unreadable},
                                 {"seconds", summary.seconds}};
  if (const PrepareSummary::Samples& samples = summary.samples; !samples.kind.empty()) {
    json["samples"] = {{"kind", samples.kind},
                       {"chat_template", samples.chat_template},
                       {"lines", samples.lines},
                       {"trained_tokens", samples.trained_tokens},
                       {"answers", samples.notes.answers},
                       {"answers_without_stop", samples.notes.without_stop},
                       {"answers_across_border", samples.notes.across_border},
                       {"conversations_split_apart", samples.notes.split_apart},
                       {"turns_unasked", samples.notes.unasked}};
  }
  if (summary.append_eod) {
    json["append_eod"] = *summary.append_eod;
  }
  if (summary.validation) {
    json["validation"] = to_json(*summary.validation);
  }
  // Paths need not be UTF-8; invalid bytes are replaced.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace dstrain
