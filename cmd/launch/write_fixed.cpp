#include "cmd/launch/write_fixed.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "cmd/exit_codes.h"
#include "engine/config/config_error.h"
#include "engine/config/json_text.h"
#include "engine/config/mend_config.h"
#include "engine/data/output_file.h"

namespace dstrain {

int write_fixed(const RunFlags& flags, int world_size, const std::string& file) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(file, error))) {
    throw_config_error("--write-fixed", file, "already exists: name a new file");
  }
  const ResolveConfig resolve = [&](LoadedConfig& loaded, ConfigProblems& problems) {
    resolve_config(loaded, world_size, flags.machine, problems);
  };
  const MendedConfig mended =
      mend_config(read_json_text(flags.config), flags.config, options_of(flags), resolve);
  for (const std::string& change : mended.changes)
    fmt::print("{}\n", change);
  if (!mended.left.empty()) {
    fmt::print(
        "{} was not written: the rest has to be corrected by hand, or with --set KEY=VALUE\n",
        file);
    throw ConfigError(mended.left, flags.config);
  }
  OutputFile output(file);
  output.append(mended.text);
  output.sync();
  RunFlags written = flags;
  written.config = file + ".partial";  // where OutputFile keeps it until it is published
  written.overrides.clear();
  static_cast<void>(load_and_resolve(written, world_size));
  output.publish();
  fmt::print("{} was written: {} change{}\n", file, mended.changes.size(),
             mended.changes.size() == 1 ? "" : "s");
  return kExitSuccess;
}

}  // namespace dstrain
