// Changes a config's text at one place and says so in a comment at the end of that line:
// `// was: 5: why`. All else stays byte by byte.
#pragma once

#include <optional>
#include <string>

#include "engine/config/config_error.h"

namespace dstrain {

/// Returns nothing where the text has no place for the edit, for example inside a model's folder.
/// `text` must be one that parse_json_document() accepts, and so is the result.
std::optional<std::string> edit_text(const std::string& text,
                                     const ConfigEdit& edit,
                                     const std::string& why);

}  // namespace dstrain
