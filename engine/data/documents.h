// Finds, in a sequence of several documents, where one ends, the position of a token in its own,
// and which targets do not count because they begin another.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/config/data_config.h"

namespace dstrain {

/// A target that is ignored, of a token behind which another document begins. Samples of
/// fine-tuning data end with it, as no token tells them apart: the one that ends an answer is also
/// within them.
inline constexpr std::int32_t kLastOfDocument = -101;

/// How a run treats the borders between documents.
struct DocumentRules {
  std::int32_t end = -1;       ///< the id behind each document, its last token
  bool attention = false;      ///< a token sees its own document alone, and has a position in it
  bool masks_borders = false;  ///< no loss where a document's end is to predict the next one
  bool are_packed = false;     ///< sequences are filled up with targets that are ignored
  bool are_samples = false;    ///< their last targets are kLastOfDocument, and say where they end

  /// Whether some targets do not count.
  [[nodiscard]] bool ignores_targets() const { return masks_borders || are_packed; }
  bool operator==(const DocumentRules&) const = default;
};

DocumentRules document_rules(const DataConfig& data);
/// Throws ConfigError where the rules need to know a document's end and nothing says it: which only
/// the data's description may, and that only where the files are.
const DataConfig& require_document_end(const DataConfig& data);

/// ids and positions: [B, T]. A sequence begins with position 0, wherever in a document that is.
void find_document_positions(std::span<const std::int32_t> ids,
                             std::int64_t sequence_T,
                             std::int32_t end,
                             std::span<std::int32_t> positions);

/// The same where targets say where documents end; kLastOfDocument becomes kIgnoredTarget.
void take_document_ends(std::span<std::int32_t> targets,
                        std::int64_t sequence_T,
                        std::span<std::int32_t> positions);

/// Sets targets after an input that ends a document to kIgnoredTarget. The shape of both is [B, T].
void ignore_targets_behind(std::int32_t end,
                           std::span<const std::int32_t> inputs,
                           std::span<std::int32_t> targets);

/// Returns the number of targets that are not kIgnoredTarget.
std::int64_t count_targets(std::span<const std::int32_t> targets);

}  // namespace dstrain
