// dstrain help, completion and man: what the command line says of itself.
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/help/flag_spelling.h"
#include "cmd/help/help_text.h"
#include "cmd/help/man_page.h"
#include "cmd/help/shell_completion.h"
#include "cmd/launch/build_id.h"
#include "engine/config/config_keys.h"

namespace dstrain {
namespace {

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  for (const Key& key : all_keys()) {
    if (key.status == KeyStatus::kHonoured) keys.push_back(key.path);
  }
  return keys;
}

std::string completion_for(const std::string& shell, const ProgramTable& program) {
  if (shell == "bash") return bash_completion(program, config_keys());
  if (shell == "zsh") return zsh_completion(program, config_keys());
  return fish_completion(program, config_keys());
}

}  // namespace

void add_help_command(CLI::App& app, Command& chosen) {
  CLI::App* const command = app.add_subcommand("help", "Print a command's help, like its --help");
  auto name = std::make_shared<std::string>();
  command->add_option("COMMAND", *name, "One of dstrain's commands; default: all of them");
  command->callback([&app, name, &chosen] {
    chosen = [&app, name] {
      const ProgramTable program = describe_program(app);
      fmt::print("{}",
                 name->empty() ? help_text(program) : help_text(find_command(program, *name)));
      return int{kExitSuccess};
    };
  });
}

void add_completion_command(CLI::App& app, Command& chosen) {
  CLI::App* const command = app.add_subcommand(
      "completion", "Print completions of commands, flags and values for a shell");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "Shell to print them for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "Examples:\n"
      "  source <(dstrain completion bash)       # in ~/.bashrc\n"
      "  source <(dstrain completion zsh)        # in ~/.zshrc, after compinit\n"
      "  dstrain completion fish > ~/.config/fish/completions/dstrain.fish");
  command->callback([&app, shell, &chosen] {
    chosen = [&app, shell] {
      fmt::print("{}", completion_for(*shell, describe_program(app)));
      return int{kExitSuccess};
    };
  });
}

void add_man_command(CLI::App& app, Command& chosen) {
  CLI::App* const command = app.add_subcommand("man", "Print the manual page, in roff");
  command->footer(
      "Examples:\n"
      "  dstrain man | man -l -\n"
      "  dstrain man > /usr/local/share/man/man1/dstrain.1");
  command->callback([&app, &chosen] {
    chosen = [&app] {
      fmt::print("{}", man_page(describe_program(app), own_version()));
      return int{kExitSuccess};
    };
  });
}

}  // namespace dstrain
