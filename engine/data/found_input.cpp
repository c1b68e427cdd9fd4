#include "engine/data/found_input.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/config/config_error.h"
#include "engine/config/tokenizer_identity.h"
#include "engine/data/input/not_text.h"
#include "engine/data/input/split_files.h"

namespace dstrain {
namespace {

void take(InputFiles from, FoundInput& into, std::vector<NotTextFile>& not_text) {
  std::move(from.files.begin(), from.files.end(), std::back_inserter(into.files));
  std::move(from.unreadable.begin(), from.unreadable.end(), std::back_inserter(into.unreadable));
  std::move(from.not_text.begin(), from.not_text.end(), std::back_inserter(not_text));
  into.hidden += from.hidden;
  into.folder_links += from.folder_links;
  into.special += from.special;
  into.excluded += from.excluded;
}

}  // namespace

std::string FoundInput::hash_before(InputPosition place) const {
  std::string text;
  const std::size_t end = std::min(files.size(), place.file + (place.byte > 0 ? 1 : 0));
  for (std::size_t i = 0; i < end; ++i) {
    const InputFile& file = files[i];
    text += fmt::format("{}\n{} {} {} {} {}\n", file.name(), file.bytes, file.modified_ns,
                        name_of(file.compression), file.is_json_lines, bool{is_validation[i]});
  }
  return content_hash(text);
}

FoundInput find_input(const PrepareOptions& options,
                      const JsonField& field,
                      const std::function<bool()>& stop_requested) {
  const InputSelection selection{
      .extensions = options.extensions,
      .left_out_folder = options.output,
      .exclude = options.exclude,
      .kind = {.field = field,
               .field_was_named = options.field.has_value() || options.chat,
               .as_text = options.as_text,
               .longest_line = options.longest_line}};
  FoundInput found;
  std::vector<NotTextFile> not_text;
  take(find_input_files(options.input, selection, stop_requested), found, not_text);
  if (options.validation_input.empty()) {
    found.is_validation = choose_validation(found.files, options.validation, options.seed);
  } else {
    found.is_validation.assign(found.files.size(), false);
    take(find_input_files(options.validation_input, selection, stop_requested), found, not_text);
    found.is_validation.resize(found.files.size(), true);
  }
  refuse_not_text(not_text);
  if (options.chat && !stop_requested()) {
    for (const InputFile& file : found.files) {
      if (!file.is_json_lines) {
        throw ConfigError(
            fmt::format("{}: --chat reads JSON lines, an example on each, and this "
                        "file does not begin with an object",
                        file.path));
      }
    }
  }
  if (options.field && !stop_requested() &&
      std::none_of(found.files.begin(), found.files.end(),
                   [](const InputFile& file) { return file.is_json_lines; })) {
    throw ConfigError(fmt::format("--field {}: there are no JSON lines among the {} of --input",
                                  *options.field,
                                  counted(static_cast<std::int64_t>(found.files.size()), "file")));
  }
  return found;
}

}  // namespace dstrain
