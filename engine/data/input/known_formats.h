// Recognises the format of a file that is neither plain text nor token ids, by its first bytes or
// by its name. Both prepare-data and a run's data use it, as each is given such files by mistake.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain {

struct KnownFormat {
  enum class Content : std::uint8_t {
    kJson,   ///< characters, but records rather than text
    kText,   ///< text that has to be unpacked first
    kOther,  ///< no text at all
  };
  const char* what;    ///< "compressed with gzip"
  const char* advice;  ///< "decompress it first"
  Content content;
};

/// The number of bytes of a file's beginning that suffices to recognise all of them.
inline constexpr std::size_t kSignatureBytes = 264;

/// Returns nullptr if it is none of them. `head` holds the first kSignatureBytes bytes, or all.
const KnownFormat* format_of_content(std::string_view head);
/// Goes by what follows the last dot, whatever its case.
const KnownFormat* format_of_name(std::string_view path);

/// Returns what follows the last dot of a file's name, in lower case and without the dot; "" if
/// there is none.
std::string extension_of(std::string_view path);

}  // namespace dstrain
