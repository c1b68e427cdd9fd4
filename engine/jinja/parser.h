// Parser: the tokens of a template become statements and expressions. It takes Jinja's language as
// chat templates use it: for, if, set, macro, call, filter, with, raw, break, continue, and
// {% generation %}, which transformers adds. What reads other files (include, extends) is refused.
#pragma once

#include <string_view>

#include "engine/jinja/program.h"

namespace dstrain::jinja {

/// Throws TemplateError, which begins with "line N: ".
Block parse(std::string_view source);

}  // namespace dstrain::jinja
