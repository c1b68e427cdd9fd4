// SeenDocuments: remembers which documents came before, by their text. It takes 16 bytes for each,
// in a table that is at least three eighths full once it is large.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/data/input/document_digest.h"

namespace dstrain {

class SeenDocuments {
 public:
  /// Returns whether it is new, and remembers it.
  bool insert(const DocumentDigest& digest);

 private:
  void grow();
  /// The place of the digest, or the free place that it would go to.
  [[nodiscard]] std::size_t place_of(const DocumentDigest& digest) const;

  std::vector<DocumentDigest> table_;  ///< a power of two of places; zero: free
  std::size_t num_ = 0;
};

}  // namespace dstrain
