// Makes the TrafficPlan of a RunPlan from the rest of it: what the chunks, the optimizer and the
// trainer ask of the groups.
#pragma once

#include "engine/plan/traffic_plan.h"

namespace dstrain {

struct RunPlan;

/// `plan` without its traffic.
TrafficPlan plan_traffic(const RunPlan& plan, GradientTravel travel);

}  // namespace dstrain
