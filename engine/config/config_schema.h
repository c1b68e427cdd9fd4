// The key table as a JSON Schema (draft 7), so that editors complete and check configs. Rules over
// several keys (the batch identity, heads and widths) are beyond it; dstrain launch --check has the
// last word.
#pragma once

#include <string>

namespace dstrain {

/// The schema as JSON text.
std::string config_schema();

}  // namespace dstrain
