// A model's vocabulary as tokenizer.json and vocab.json write it.
#pragma once

#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/vocabulary.h"

namespace dstrain {

/// {"token": id, …}. Throws ConfigError, also where two tokens have one id.
Vocabulary vocabulary_of_object(const JsonPart& part);

}  // namespace dstrain
