// DocumentIndex: finds the document of a Megatron pair that a token belongs to, straight from the
// .idx: nothing is held, so an index of any size opens at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/mapped_file.h"
#include "engine/data/megatron_index.h"

namespace dstrain {

class DocumentIndex {
 public:
  /// Opens the index of PREFIX, PREFIX.bin or PREFIX.idx. Returns nullptr if there is no
  /// PREFIX.idx. Throws ConfigError where the pair is damaged.
  static std::unique_ptr<DocumentIndex> open(const std::string& prefix);

  /// The path of the .idx.
  [[nodiscard]] const std::string& path() const { return index_.path(); }
  [[nodiscard]] std::int64_t num_documents() const { return facts_.num_documents; }
  /// The document that holds a token in [0, the pair's tokens), never one without tokens.
  [[nodiscard]] std::int64_t document_of(std::int64_t token) const;
  /// The first token of a document; for num_documents(), the end of the last one.
  [[nodiscard]] std::int64_t first_token(std::int64_t document) const;

  /// Whether its documents are samples of fine-tuning data.
  [[nodiscard]] bool has_modes() const { return facts_.has_modes; }
  struct Part {
    std::int64_t begin;  ///< of the file's tokens
    std::int64_t size;
    std::uint8_t mode;  ///< bits: kContextMode, …
  };
  /// The mode of the first of a document's sequences; 0 where it has none.
  [[nodiscard]] std::uint8_t first_mode(std::int64_t document) const;
  /// The sequences of a document of such data, in order.
  [[nodiscard]] std::vector<Part> parts(std::int64_t document) const;

 private:
  DocumentIndex(const std::string& idx_path, const std::string& bin_path);
  template <typename T>
  [[nodiscard]] T value_at(std::int64_t byte) const;

  MappedFile index_;
  MegatronIndex facts_;
};

}  // namespace dstrain
