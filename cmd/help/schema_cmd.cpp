// dstrain schema: the config's keys as a JSON Schema, for editors.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "engine/config/config_schema.h"

namespace dstrain {

void add_schema_command(CLI::App& app, Command& chosen) {
  CLI::App* const command =
      app.add_subcommand("schema", "Print the JSON Schema of a run's config, for editors");
  command->footer(
      "Examples:\n"
      "  dstrain schema > dstrain.schema.json\n"
      "A config that says \"$schema\": \"./dstrain.schema.json\" is then completed and checked\n"
      "by editors as it is written.");
  command->callback([&chosen] {
    chosen = [] {
      fmt::print("{}", config_schema());
      return int{kExitSuccess};
    };
  });
}

}  // namespace dstrain
