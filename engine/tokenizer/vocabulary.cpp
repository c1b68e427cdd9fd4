#include "engine/tokenizer/vocabulary.h"

#include <utility>

#include "kernels/core/check.h"

namespace dstrain {

bool Vocabulary::add(std::int32_t id, std::string text) {
  check(id >= 0 && id < kMostTokenIds, "token id {}", id);
  const auto index = static_cast<std::size_t>(id);
  if (index >= by_id_.size()) {
    by_id_.resize(index + 1, nullptr);
  }
  if (by_id_[index] != nullptr) {
    return false;
  }
  by_id_[index] = &texts_.emplace_back(std::move(text));
  by_text_[*by_id_[index]] = id;
  return true;
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  const auto found = by_text_.find(text);
  return found == by_text_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::text(std::int32_t id) const {
  return id >= 0 && id < end() ? by_id_[static_cast<std::size_t>(id)] : nullptr;
}

}  // namespace dstrain
