// Command: what every subcommand of `dstrain` offers to main.cpp.
//
// add_xxx_command declares the flags on the CLI11 app. When the user asks for that command, it puts
// the function that runs it into `chosen`; main.cpp calls it and maps what it throws to an exit
// code (exit_codes.h), so a command neither catches nor prints its own failures.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace dstrain {

/// Runs the command; returns the exit code of the process.
using Command = std::function<int()>;

void add_launch_command(CLI::App& app, Command& chosen);
void add_evaluate_command(CLI::App& app, Command& chosen);
void add_agent_command(CLI::App& app, Command& chosen);
void add_train_command(CLI::App& app, Command& chosen);
void add_estimate_memory_command(CLI::App& app, Command& chosen);
void add_prepare_data_command(CLI::App& app, Command& chosen);
void add_convert_checkpoint_command(CLI::App& app, Command& chosen);
void add_generate_command(CLI::App& app, Command& chosen);
void add_status_command(CLI::App& app, Command& chosen);
void add_runs_command(CLI::App& app, Command& chosen);
void add_watch_command(CLI::App& app, Command& chosen);
void add_trace_command(CLI::App& app, Command& chosen);
void add_why_command(CLI::App& app, Command& chosen);
void add_report_command(CLI::App& app, Command& chosen);
void add_schema_command(CLI::App& app, Command& chosen);
void add_token_command(CLI::App& app, Command& chosen);
/// The last three describe what was added to `app`, which must outlive `chosen`.
void add_help_command(CLI::App& app, Command& chosen);
void add_completion_command(CLI::App& app, Command& chosen);
void add_man_command(CLI::App& app, Command& chosen);

}  // namespace dstrain
