// What spdlog's lines look like: time, "warning: " or "error: " where it is one, and the message,
// on stderr. The launcher puts the rank in front; without it a rank does so itself.
#pragma once

#include <string>

namespace dstrain {

/// `tag` goes before the time: "[3] ". Empty: none.
void set_up_logging(const std::string& tag = {});

}  // namespace dstrain
