// The samples of --inspect for people: tokens with their text, in colours on a terminal.
#pragma once

#include <string>
#include <string_view>

#include "cmd/inspect/inspected_run.h"

namespace dstrain {

struct InspectedTextOptions {
  std::string config{};  ///< the run's file; empty: there is none
  /// Tokens that predict nothing are dim; without colours they have a mark.
  bool colours = false;
};

std::string inspected_text(const InspectedRun& run, const InspectedTextOptions& options);

/// On one line, and nothing in it that a terminal would act on.
std::string visible(std::string_view text);

/// The first sample of fine-tuning data that a run trains on, as it reads.
std::string first_sample_text(const InspectedRun& run, bool colours);

}  // namespace dstrain
