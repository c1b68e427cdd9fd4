// Base64 (RFC 4648, section 4), as tokenizers' files hold bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

/// Returns the bytes; nothing if the text is not base64 with its padding.
std::optional<std::string> decoded_base64(std::string_view text);

}  // namespace dstrain
