// dstrain convert-checkpoint: its flags, and what it says at the end. The work itself is
// engine/checkpoint/conversion.h.
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include "cmd/byte_progress.h"
#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/logging.h"
#include "cmd/rank/stop_signal.h"
#include "engine/base/amount_text.h"
#include "engine/checkpoint/conversion.h"
#include "engine/config/arch/model_counts.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

struct Flags {
  ConversionRequest request;
  std::string from;
  std::string model;
  std::string to;
  std::string merge_adapter;
  std::string base;
  std::string max_shard_size = "5GB";
  bool json = false;
};

/// "5GB", "200MB", "7KiB", "1000000"
std::int64_t parse_size(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},      {"B", 1},         {"KB", 1e3},      {"MB", 1e6},        {"GB", 1e9},
      {"TB", 1e12}, {"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1LL << 30}, {"TIB", 1LL << 40}};
  std::size_t end = 0;
  double number = 0.0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  std::string unit = CLI::detail::trim_copy(text.substr(end));
  for (char& c : unit) {
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  const auto factor = kUnits.find(unit);
  const double bytes = factor == kUnits.end() ? 0.0 : number * factor->second;
  if (end == 0 || !(bytes >= 1.0 && bytes <= 1e18)) {
    throw ConfigError(
        fmt::format("--max-shard-size {}: expected a size such as 5GB or 200MB", text));
  }
  return static_cast<std::int64_t>(bytes);
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

void print_json(const Flags& flags, const ConversionSummary& summary) {
  const nlohmann::ordered_json json = {{"from", summary.source.string()},
                                       {"from_format", name_of(summary.source_format)},
                                       {"to", flags.to},
                                       {"to_format", name_of(summary.target_format)},
                                       {"model_type", summary.model.model_type},
                                       {"parameters", num_parameters(summary.model)},
                                       {"step", summary.step},
                                       {"tensors", summary.tensors},
                                       {"bytes", summary.bytes},
                                       {"files", summary.files},
                                       {"files_taken_up", summary.files_taken_up},
                                       {"companions", summary.companions},
                                       {"optimizer_left_out", summary.optimizer_left_out},
                                       {"left_out", summary.left_out},
                                       {"seconds", summary.seconds},
                                       {"peak_resident_bytes", peak_resident_bytes()}};
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_summary(const Flags& flags, const ConversionSummary& summary) {
  fmt::print("{}, {}: {} with {} parameters in {}{}\n", summary.source.string(),
             describe(summary.source_format), summary.model.model_type,
             grouped(num_parameters(summary.model)),
             counted(static_cast<std::int64_t>(summary.tensors), "tensor"),
             summary.step > 0 ? fmt::format(", after step {}", summary.step) : "");
  fmt::print("  to {}, {}: {} in {}, read back and compared, in {:.1f} s\n", flags.to,
             describe(summary.target_format), as_size(summary.bytes),
             counted(static_cast<std::int64_t>(summary.files.size()), "file"), summary.seconds);
  if (summary.files_taken_up > 0) {
    fmt::print("  {} of them had been finished by an interrupted conversion\n",
               summary.files_taken_up);
  }
  if (!summary.companions.empty()) {
    std::string list;
    for (const std::string& name : summary.companions) {
      list += (list.empty() ? "" : ", ") + name;
    }
    fmt::print("  with {}\n", list);
  }
  if (!summary.left_out.empty()) {
    fmt::print("  left out: {}\n", summary.left_out);
  }
  if (summary.optimizer_left_out) {
    fmt::print("  left out: the optimizer's state, which {} cannot hold\n",
               describe(summary.target_format));
  }
}

int run(Flags flags) {
  flags.request.from = flags.from;
  flags.request.to = flags.to;
  flags.request.model = flags.model;
  flags.request.merge_adapter = flags.merge_adapter;
  flags.request.base = flags.base;
  flags.request.max_shard_bytes = parse_size(flags.max_shard_size);
  set_up_logging("[convert-checkpoint] ");
  const StopSignal stop;
  ByteProgress display;
  const auto summary = convert_checkpoint(
      flags.request, {.on_progress =
                          [&](const ConversionProgress& progress) {
                            display.show_bytes(progress.bytes_done, progress.bytes_total);
                          },
                      .stop_requested = [&] { return stop.number() != 0; }});
  display.clear();
  if (!summary) {
    spdlog::warn("interrupted; {} is incomplete: run the same command again to finish it",
                 flags.to);
    return kExitSignalBase + stop.number();
  }
  if (flags.json) {
    print_json(flags, *summary);
  } else {
    print_summary(flags, *summary);
  }
  return kExitSuccess;
}

}  // namespace

void add_convert_checkpoint_command(CLI::App& app, Command& chosen) {
  static const std::map<std::string, TargetFormat> kFormats = {
      {"dstrain", TargetFormat::kDstrain},
      {"huggingface", TargetFormat::kHuggingFace},
      {"llmc", TargetFormat::kLlmC},
      {"peft", TargetFormat::kPeft},
      {"fp32", TargetFormat::kF32}};
  static const std::map<std::string, DType> kDTypes = {
      {"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}};
  auto flags = std::make_shared<Flags>();
  CLI::App* const command =
      app.add_subcommand("convert-checkpoint",
                         "Convert a checkpoint between formats: dstrain, Hugging Face, DeepSpeed "
                         "(reading only), llm.c (GPT-2)");
  command
      ->add_option("--from", flags->from,
                   "A dstrain checkpoint or run folder, a Hugging Face folder, a DeepSpeed "
                   "checkpoint, or an llm.c model")
      ->required()
      ->type_name("PATH");
  command
      ->add_option("--model", flags->model,
                   "The config.json that describes a DeepSpeed checkpoint's model, or the "
                   "folder that holds it; default: a config.json in or beside the step's "
                   "folder")
      ->type_name("PATH");
  command
      ->add_option("--merge-adapter", flags->merge_adapter,
                   "A folder with a LoRA adapter (adapter_config.json, adapter_model.safetensors) "
                   "to merge into the weights; a run's own adapters are merged without it, but in "
                   "the formats dstrain and peft")
      ->type_name("PATH");
  command
      ->add_option("--base", flags->base,
                   "Where the weights are now beside which a run trained adapters, if they were "
                   "moved; default: where model.initial_weights was")
      ->type_name("PATH");
  command->add_option("--to", flags->to, "The new folder; for llmc and fp32, the new file")
      ->required()
      ->type_name("PATH");
  command
      ->add_option_function<std::string>(
          "--format",
          [flags](const std::string& name) { flags->request.format = kFormats.at(name); },
          "Format to write. Default: llmc for FILE.bin, fp32 for FILE.safetensors; otherwise "
          "huggingface where the source is dstrain's, and dstrain for all other sources")
      ->check(CLI::IsMember(kFormats))
      ->type_name("dstrain|huggingface|llmc|peft|fp32");
  command
      ->add_option_function<std::string>(
          "--dtype", [flags](const std::string& name) { flags->request.dtype = kDTypes.at(name); },
          "Precision to write parameters in; default: the source's")
      ->check(CLI::IsMember(kDTypes))
      ->type_name("fp32|bf16|fp16");
  command
      ->add_option("--max-shard-size", flags->max_shard_size,
                   "For Hugging Face: the largest size of one file")
      ->capture_default_str()
      ->type_name("SIZE");
  command
      ->add_option("--ranks", flags->request.ranks,
                   "For dstrain: the number of files to divide the checkpoint into")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--json", flags->json, "Print the summary as JSON");
  command->footer(
      "Formats are recognised by what the files hold. Nothing is overwritten; what is\n"
      "written is read back and compared; an interrupted conversion resumes where it\n"
      "stopped when the same command is run again.\n"
      "Examples:\n"
      "  dstrain convert-checkpoint --from runs/quickstart --to exported\n"
      "  dstrain convert-checkpoint --from exported --to start --format dstrain \\\n"
      "    --ranks 4\n"
      "  dstrain convert-checkpoint --from runs/gpt2 --to gpt2.bin --dtype bf16\n"
      "  dstrain convert-checkpoint --from deepspeed/global_step400 \\\n"
      "    --model Llama-2-7b --to exported --format huggingface\n"
      "  dstrain convert-checkpoint --from runs/lora --to adapter --format peft\n"
      "  dstrain convert-checkpoint --from Qwen3-8B --merge-adapter adapter --to merged \\\n"
      "    --format huggingface\n"
      "  dstrain convert-checkpoint --from runs/gpt2/checkpoints/step-00000400 \\\n"
      "    --to weights.safetensors");
  command->callback([flags, &chosen] { chosen = [flags] { return run(*flags); }; });
}

}  // namespace dstrain
