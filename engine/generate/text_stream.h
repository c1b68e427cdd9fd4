// TextStream: turns tokens into text as they come. It gives out only what no later token can
// change: whole characters, and nothing that may turn out to be the beginning of a stop text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace dstrain {

class TextStream {
 public:
  /// `prompt` holds the tokens before, which decide if a word begins with a space. The text ends
  /// before the first of `stops` (UTF-8, not empty). `tokenizer` must outlive the stream.
  TextStream(const Tokenizer& tokenizer,
             std::span<const std::int32_t> prompt,
             std::vector<std::string> stops);

  /// Returns the text that this token makes certain.
  std::string push(std::int32_t token);
  /// Returns the text that was held back, now that nothing follows.
  std::string finish();
  /// Whether a stop text has come.
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  /// The bytes of pushed tokens that were not given out before; none while a character is
  /// incomplete.
  std::string new_bytes(bool is_last);
  std::string up_to_stop(const std::string& text, bool is_last);

  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::vector<std::int32_t>
      window_;              ///< tokens given out that the next ones join, and those not yet
  std::size_t given_ = 0;   ///< of window_
  std::string characters_;  ///< bytes that do not form a whole character yet
  std::string held_;        ///< text that may be the beginning of a stop text
  bool stopped_ = false;
};

}  // namespace dstrain
