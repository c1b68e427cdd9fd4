// Environment: decides which variables the ranks of other hosts get. On the launcher's own machine
// they inherit all of its variables; over SSH a program gets those of a login, and on top of them
// these, of which a later one replaces an earlier one:
//
//   1  the launcher's own whose names begin as below
//   2  .deepspeed_env (or what DS_ENV_FILE names) in the home folder, then in the working folder
//   3  --env-file, in their order
//   4  --env NAME (the launcher's value) and --env NAME=VALUE, in their order
//
// 2 to 4 hold on the own machine as well. Values are bytes, which arrive as they are: no shell sees
// them. In files: lines NAME=VALUE, blank lines, lines that begin with #; one pair of quotes around
// a whole value is taken off, as DeepSpeed's remote shell would.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/process/errors.h"

namespace dstrain::launcher {

using Variables = std::vector<std::pair<std::string, std::string>>;
/// The launcher's own variables.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Step 1: those of `own` that other hosts get without being asked.
Variables passed_variables(const Variables& own);
/// Whether a name is among them: whether it begins with NCCL_, WANDB_, … and is not what the
/// launcher sets for each rank itself.
bool is_passed(std::string_view name);

struct EnvironmentFlags {
  std::vector<std::string> files{};        ///< --env-file
  std::vector<std::string> assignments{};  ///< --env: NAME or NAME=VALUE
};

/// Called for each file of step 2 that exists, with the names that it sets.
using OnFoundFile =
    std::function<void(const std::string& path, const std::vector<std::string>& names)>;

/// Steps 2 to 4. Throws UsageError: "file:line: …"; also where a file of 2, which nobody has named,
/// is another user's, or everybody may write to it.
Variables asked_variables(
    const EnvironmentFlags& flags,
    const VariableLookup& own,
    const OnFoundFile& on_found = [](const auto&, const auto&) {});

/// The variables of this process.
Variables own_variables();

}  // namespace dstrain::launcher
