// The key table as a JSON Schema (draft 7), so that editors complete and check configs. What spans
// several keys (the batch identity, heads and widths) is beyond it; dstrain launch --check has the
// last word.
#pragma once

#include <string>

namespace dstrain {

/// The schema as JSON text.
std::string config_schema();

}  // namespace dstrain
