// Translates what torchrun's and DeepSpeed's flags ask for into this launcher's own flags.
#pragma once

#include <string>
#include <vector>

#include "cmd/launch/launch_flags.h"

namespace dstrain {

/// Sets the launcher's own flags to what `flags.peer` asks for, and logs a line for each flag that
/// has no effect. Throws launcher::UsageError where a flag is refused, or contradicts another one.
void apply_peer_launcher_flags(LaunchFlags& flags);

/// DeepSpeed's programs are given "--deepspeed FILE", or "--deepspeed --deepspeed_config FILE".
/// Throws launcher::UsageError for those of its launchers that use MPI.
std::vector<std::string> without_deepspeed_switch(std::vector<std::string> arguments);

}  // namespace dstrain
