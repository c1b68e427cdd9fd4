// From the rest of a RunPlan to its TrafficPlan: what the chunks, the optimizer and the trainer ask
// of the groups.
#pragma once

#include "engine/plan/traffic_plan.h"

namespace dstrain {

struct RunPlan;

/// `plan` without its traffic.
TrafficPlan plan_traffic(const RunPlan& plan);

}  // namespace dstrain
