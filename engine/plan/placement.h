// Placement: the axes of the mesh over which parameters, gradients and optimizer states are cut,
// and the memory in which they lie. ZeRO's stages 0 to 3 are four values of it, made where the
// config becomes the plan; everything below asks what is cut and where it lies, never for the
// number of a stage.
#pragma once

#include "engine/config/zero_stage.h"
#include "engine/plan/mesh.h"
#include "engine/plan/space.h"

namespace dstrain {

struct Place {
  AxisSet cut{};  ///< a unit is cut over those of them that it is replicated over
  Space space = Space::kDevice;

  [[nodiscard]] bool is_cut() const { return cut != AxisSet{}; }
  /// Whether a unit that is replicated over `axes` (UnitDecl::replicated) is cut.
  [[nodiscard]] bool cuts(AxisSet axes) const { return cut.meets(axes); }
};

struct Placement {
  Place parameters;  ///< what the model computes with
  Place gradients;   ///< what the optimizer reads
  Place states;      ///< masters and moments; the optimizer runs in their space
  /// Where parameters are cut over more ranks: a second copy, cut over fewer, from which a unit is
  /// gathered again until its next update (ZeRO++'s hpZ, Wang et al. 2023, section 3.2).
  Place secondary;
};

/// Makes the placement in which whatever is cut is cut over all axes that its unit is replicated
/// over, and everything lies on the device.
inline Placement zero_placement(const ZeroCuts& cuts) {
  const auto place = [&](bool is_cut) { return Place{.cut = is_cut ? kEveryReplica : AxisSet{}}; };
  return {.parameters = place(cuts.parameters),
          .gradients = place(cuts.gradients),
          .states = place(cuts.states)};
}

}  // namespace dstrain
