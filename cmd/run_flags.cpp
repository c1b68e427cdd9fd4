#include "cmd/run_flags.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/config/json_text.h"
#include "engine/train/micro_batch_choice.h"

namespace dstrain {

namespace {

HostAndPort parse_metrics_port(const std::string& text) {
  const bool is_port = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const auto parsed = parse_host_and_port(is_port ? "127.0.0.1:" + text : text);
  if (!parsed || !parsed->port) {
    throw ConfigError(fmt::format(
        "--metrics-port: \"{}\" is not [ADDRESS:]PORT with a port from 1 to 65535, as 9400 or "
        "0.0.0.0:9400",
        text));
  }
  return *parsed;
}

}  // namespace

void add_run_flags(CLI::App& command, RunFlags& flags) {
  command.add_option("CONFIG,--deepspeed_config", flags.config, "The run's JSON file")
      ->required()
      ->type_name("FILE");
  command.option_defaults()->group("Run");
  command
      .add_option("--set", flags.overrides,
                  "Override a value of the config, for example --set "
                  "optimizer.params.lr=1e-4; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_flag("--allow-unknown-keys", flags.allow_unknown_keys,
                   "Warn about unknown keys instead of refusing them");
  command.add_flag("--allow-tokenizer-mismatch", flags.allow_tokenizer_mismatch,
                   "Warn if data, weights and model come from different tokenizers, instead of "
                   "refusing them");
  command.add_flag(
      "--ignore-offload", flags.ignore_offload,
      "Train without offloading if the config asks for it, instead of refusing the config");
  command.add_flag("--take-over", flags.takes_over,
                   "Take training.output_dir over from a run that is using it, which then "
                   "stops, instead of being refused");
  command
      .add_option_function<std::string>(
          "--metrics-port",
          [&flags](const std::string& text) { flags.metrics_at = parse_metrics_port(text); },
          "Let Prometheus read how the run goes at http://ADDRESS:PORT/metrics of rank 0's host; "
          "without an address only from that host itself; 0.0.0.0:PORT: from everywhere")
      ->type_name("[ADDRESS:]PORT");
  command.add_flag("--evaluate-only,--do_eval", flags.evaluates,
                   "Train nothing: print the loss over data.validation of the newest "
                   "checkpoint or, if there is none, of the weights that the run would start "
                   "from");
  command.add_flag("--evaluate-sources", flags.evaluates_sources)->group("");  // of `evaluate`
}

LoadOptions options_of(const RunFlags& flags) {
  return {.overrides = flags.overrides,
          .allow_unknown_keys = flags.allow_unknown_keys,
          .ignore_offload = flags.ignore_offload};
}

LoadedConfig load_and_resolve(const RunFlags& flags, int world_size) {
  LoadedConfig loaded =
      load_and_resolve(flags.config, options_of(flags), world_size, flags.machine);
  if (flags.evaluates && loaded.config.data.validation.empty()) {
    throw_config_error(flags.config, "data.validation",
                       "missing, and it is what is evaluated: --set data.validation=PREFIX");
  }
  return loaded;
}

LoadedConfig load_and_resolve(const std::string& config,
                              const LoadOptions& options,
                              int world_size,
                              const MachineFacts& facts) {
  ConfigProblems problems;
  LoadedConfig loaded = load_config(config, options, problems);
  if (problems.empty()) choose_micro_batch(loaded, world_size, facts);
  resolve_config(loaded, world_size, facts, problems);
  problems.throw_if_any(loaded.file);
  return loaded;
}

DeviceChoice wished_device(const RunFlags& flags) {
  try {
    return load_config(flags.config, options_of(flags)).config.training.device;
  } catch (const ConfigError&) {
    return DeviceChoice::kCpu;
  }
}

std::vector<std::string> to_arguments(const RunFlags& flags) {
  std::vector<std::string> arguments;
  for (const std::string& override : flags.overrides)
    arguments.push_back("--set=" + override);
  if (flags.allow_unknown_keys) arguments.emplace_back("--allow-unknown-keys");
  if (flags.allow_tokenizer_mismatch) arguments.emplace_back("--allow-tokenizer-mismatch");
  if (flags.ignore_offload) arguments.emplace_back("--ignore-offload");
  if (flags.metrics_at) {
    arguments.push_back("--metrics-port=" +
                        host_and_port(flags.metrics_at->host, flags.metrics_at->port.value()));
  }
  if (flags.evaluates) arguments.emplace_back("--evaluate-only");
  if (flags.evaluates_sources) arguments.emplace_back("--evaluate-sources");
  if (flags.takes_over) arguments.emplace_back("--take-over");
  arguments.emplace_back("--");  // a config's name may begin with a dash
  arguments.push_back(flags.config);
  return arguments;
}

}  // namespace dstrain
