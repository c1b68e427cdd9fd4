#include "engine/data/seen_documents.h"

#include <utility>

namespace dstrain {

bool SeenDocuments::insert(const DocumentDigest& digest) {
  if (4 * (num_ + 1) > 3 * table_.size()) {
    grow();
  }
  // A digest of all zeros marks a free place, so the one document in 2^128 that has it gets another
  // digest.
  const DocumentDigest kept = digest == DocumentDigest{} ? DocumentDigest{1, 0} : digest;
  DocumentDigest& place = table_[place_of(kept)];
  if (place == kept) {
    return false;
  }
  place = kept;
  ++num_;
  return true;
}

void SeenDocuments::grow() {
  const std::vector<DocumentDigest> old =
      std::exchange(table_, std::vector<DocumentDigest>(table_.empty() ? 1024 : 2 * table_.size()));
  for (const DocumentDigest& digest : old) {
    if (digest != DocumentDigest{}) {
      table_[place_of(digest)] = digest;
    }
  }
}

std::size_t SeenDocuments::place_of(const DocumentDigest& digest) const {
  std::size_t place = digest.low & (table_.size() - 1);
  while (table_[place] != DocumentDigest{} && table_[place] != digest) {
    place = (place + 1) & (table_.size() - 1);
  }
  return place;
}

}  // namespace dstrain
