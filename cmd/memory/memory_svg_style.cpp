#include "cmd/memory/memory_svg_style.h"

namespace dstrain {

std::string_view memory_style_sheet() {
  return R"(.surface{fill:#fff}
.ink{fill:#1b1e24}
.soft{fill:#59606c}
.on-dark{fill:#fff}
.on-light{fill:#14161a}
.grid{stroke:#e2e5ea}
.rule{stroke:#9aa1ad}
.held{stroke:#1b1e24;stroke-width:1.6}
.limit{stroke:#c0182b;stroke-width:1.8;stroke-dasharray:7 4}
.bad{fill:#c0182b}
.free{fill:#1b1e24;fill-opacity:.07}
.overhead{fill:#1b1e24;fill-opacity:.22}
.edge{stroke:#fff;stroke-width:.6}
.dot{fill:#1b1e24;stroke:#fff;stroke-width:2}
.forward{fill:#d0d5dd}
.backward{fill:#98a0ad}
.both{fill:#b5bbc6}
.update{fill:#1b1e24}
@media (prefers-color-scheme: dark){
.surface{fill:#15181d}
.ink{fill:#eceef1}
.soft{fill:#a7aeba}
.grid{stroke:#2b3038}
.rule{stroke:#6a7280}
.held{stroke:#eceef1}
.limit{stroke:#ff7a85}
.bad{fill:#ff7a85}
.free{fill:#eceef1}
.overhead{fill:#eceef1}
.edge{stroke:#15181d}
.dot{fill:#eceef1;stroke:#15181d}
.update{fill:#eceef1}
}
)";
}

std::string_view colour_of(MemoryComponent component) {
  switch (component) {
    case MemoryComponent::kParameters:
      return "#24569a";
    case MemoryComponent::kGradients:
      return "#5b9bd5";
    case MemoryComponent::kOptimizer:
      return "#b5d6f2";
    case MemoryComponent::kAttentionActivations:
      return "#a66310";
    case MemoryComponent::kMlpActivations:
      return "#ee9a2b";
    case MemoryComponent::kNormActivations:
      return "#f4ea7d";
    case MemoryComponent::kOtherActivations:
      return "#6e5318";
    case MemoryComponent::kLogits:
      return "#de6593";
    case MemoryComponent::kGatherBuffers:
      return "#25524f";
    case MemoryComponent::kBuckets:
      return "#5bd69d";
    case MemoryComponent::kWorkspace:
      return "#63666a";
  }
  return "";
}

std::string_view look_of(PhaseBand::Kind kind) {
  switch (kind) {
    case PhaseBand::Kind::kForward:
      return "forward";
    case PhaseBand::Kind::kBackward:
      return "backward";
    case PhaseBand::Kind::kBoth:
      return "both";
    case PhaseBand::Kind::kUpdate:
      break;
  }
  return "update";
}

}  // namespace dstrain
