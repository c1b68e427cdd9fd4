#include "engine/tokenizer/model_vocabulary.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace dstrain {

Vocabulary vocabulary_of_object(const JsonPart& part) {
  if (!part.json().is_object()) {
    part.fail("expected an object of tokens and their ids");
  }
  Vocabulary vocabulary;
  for (const auto& [text, value] : part.json().items()) {
    const std::int64_t id = value.is_number_integer() ? value.get<std::int64_t>() : -1;
    if (id < 0 || id >= kMostTokenIds) {
      part.fail(fmt::format("\"{}\": expected an id from 0 to {}, found {}", text,
                            kMostTokenIds - 1,
                            value.is_structured() ? value.type_name() : value.dump()));
    }
    if (!vocabulary.add(static_cast<std::int32_t>(id), text)) {
      part.fail(fmt::format("\"{}\" and \"{}\" have the same id, {}",
                            *vocabulary.text(static_cast<std::int32_t>(id)), text, id));
    }
  }
  return vocabulary;
}

}  // namespace dstrain
