// DocumentSink: writes prepare-data's documents into two Megatron pairs, leaving out those that
// came before. It can keep what it has at any moment, so that another process resumes from there;
// for that it writes OUTPUT/documents.partial beside the token files, 24 bytes a document: its
// digest, and a word of 2 × tokens + (1 if it is for validation), in the order they came.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/base/checksum.h"
#include "engine/data/input/document_digest.h"
#include "engine/data/megatron_writer.h"
#include "engine/data/output_file.h"
#include "engine/data/seen_documents.h"

namespace dstrain {

enum class Split : std::uint8_t { kTrain, kValidation };

class DocumentSink {
  template <typename Array>
  static auto& at(Array& both, Split split) {
    return both[static_cast<std::size_t>(split)];
  }

 public:
  struct Settings {
    std::string folder;
    TokenType type;
    std::optional<std::int32_t> append_eod;
    bool deduplicate;
    /// Called before the tokens of a document that was open are cut off again. They may have been
    /// kept, and then that has to be taken back first.
    std::function<void()> before_discard = [] {};
  };
  /// The state that was kept, to be compared with what lies on the disk.
  struct Kept {
    struct OfSplit {
      std::int64_t tokens = 0;  ///< in all
      std::int64_t open_tokens = 0;
      std::string content{};
      std::string open_content{};
      std::int64_t text_bytes = 0;
    };
    std::array<OfSplit, 2> splits{};  ///< by Split
    std::int64_t documents = 0;
    std::string journal{};  ///< a hash of it

    /// Leaves only the documents that had ended.
    void forget_open();
  };

  explicit DocumentSink(const Settings& settings);
  /// Continues what another one kept. Throws ConfigError if the files are not those.
  DocumentSink(const Settings& settings, const Kept& kept);
  DocumentSink(const DocumentSink&) = delete;
  DocumentSink& operator=(const DocumentSink&) = delete;

  /// Appends a part of the document that is open, or that begins.
  void append(Split split, std::span<const std::int32_t> ids);
  /// Ends the document that is open; returns false if it came before, and then drops it.
  bool end_document(Split split, const DocumentDigest& digest, std::int64_t text_bytes);
  void discard_document(Split split);
  /// Adds a whole document at once; returns false if it came before.
  bool add_document(Split split,
                    std::span<const std::int32_t> ids,
                    const DocumentDigest& digest,
                    std::int64_t text_bytes);

  /// Adds a whole sample of fine-tuning data; returns false if its line came before.
  bool add_sample(Split split,
                  std::span<const std::int32_t> ids,
                  const SampleParts& parts,
                  const DocumentDigest& digest,
                  std::int64_t text_bytes);

  /// Puts everything so far on the disk, where it stays whatever happens to this process.
  [[nodiscard]] Kept keep();

  [[nodiscard]] bool is_empty() const;
  [[nodiscard]] std::int64_t text_bytes(Split split) const { return at(text_bytes_, split); }
  [[nodiscard]] MegatronWriter& writer(Split split) { return *at(writers_, split); }
  [[nodiscard]] const MegatronWriter& writer(Split split) const { return *at(writers_, split); }
  /// From now on, files that were kept and not published are deleted with this object.
  void let_go();

 private:
  void close_document(Split split, const DocumentDigest& digest, std::int64_t text_bytes);
  void restore_documents(std::int64_t documents);

  Settings settings_;
  std::array<std::unique_ptr<MegatronWriter>, 2> writers_;
  std::array<std::int64_t, 2> text_bytes_{};
  SeenDocuments seen_;
  std::unique_ptr<OutputFile> journal_;
  RunningChecksum journal_hash_;
  std::int64_t documents_ = 0;
};

}  // namespace dstrain
