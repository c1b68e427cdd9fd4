// dstrain estimate-memory: what every rank of a run will hold, before there are any ranks. It
// touches no device, no network and no data.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/logging.h"
#include "cmd/memory/compatible_estimates.h"
#include "cmd/memory/memory_flags.h"
#include "cmd/memory/memory_matrix.h"
#include "cmd/memory/memory_report.h"
#include "cmd/memory/memory_svg.h"
#include "cmd/memory/published_memory.h"
#include "cmd/rank/rank_threads.h"
#include "cmd/run_summary.h"
#include "engine/base/amount_text.h"
#include "engine/base/write_failure.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/config/config_error.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/memory_estimate.h"

namespace dstrain {
namespace {

struct Flags {
  EstimateFlags estimate;
  std::string device_memory;  ///< "" : no limit
  std::string host_memory;    ///< "": not known
  std::string host_disk;      ///< likewise
  std::string device;         ///< "": as the config says
  std::string svg;
  bool matrix = false;
  bool json = false;
  bool csv = false;
  bool deepspeed = false;
  bool huggingface = false;
  bool published = false;
};

struct Hosts {
  int world_size = 0;
  int most_ranks = 0;  ///< of one host
  std::vector<int> ranks;
};

Hosts count(const std::vector<launcher::Host>& hosts) {
  Hosts counted;
  for (const launcher::Host& host : hosts) {
    const auto slots = static_cast<int>(host.slots.size());
    counted.world_size += slots;
    counted.most_ranks = std::max(counted.most_ranks, slots);
    counted.ranks.push_back(slots);
  }
  return counted;
}

/// All hosts are alike.
std::vector<HostRoom> rooms_of(const Flags& flags, const Hosts& hosts) {
  const auto amount = [](const std::string& text) {
    return text.empty() ? std::nullopt : std::optional(parse_amount(text));
  };
  std::vector<HostRoom> rooms;
  for (const int ranks : hosts.ranks) {
    rooms.push_back({.ranks = ranks,
                     .memory_bytes = amount(flags.host_memory),
                     .disk_bytes = amount(flags.host_disk)});
  }
  return rooms;
}

EstimatedDevice choose_device(const MachineFacts& machine,
                              const Config& config,
                              const Hosts& hosts) {
  return {.cuda = machine.cuda,
          .threads = estimated_threads(config, hosts.most_ranks),
          .ranks_per_host = hosts.most_ranks};
}

/// The facts that "auto" values depend on. GPUs that are not named count as current ones.
MachineFacts facts_of(bool cuda, const std::optional<MemoryLimit>& limit, const Hosts& hosts) {
  const std::optional<int> ranks_per_host = common_ranks(hosts.ranks);
  if (!cuda) return {.ranks_per_host = ranks_per_host};
  const Accelerator gpu = limit ? limit->accelerator.value_or(Accelerator{}) : Accelerator{};
  return {.cuda = true,
          .name = gpu.name.empty() ? "a GPU" : std::string(gpu.name),
          .multiplies_bf16 = gpu.multiplies_bf16,
          .multiplies_f16 = true,
          .memory_bytes = limit ? std::optional(limit->bytes) : std::nullopt,
          .ranks_per_host = ranks_per_host};
}

/// No device is asked: where neither --device nor the config says which, it is a GPU if its memory
/// is given.
MachineFacts facts_of(const Flags& flags,
                      const std::optional<MemoryLimit>& limit,
                      const std::vector<std::string>& overrides,
                      const Hosts& hosts) {
  if (!flags.device.empty()) return facts_of(flags.device == "cuda", limit, hosts);
  const MachineFacts open = facts_of(limit.has_value(), limit, hosts);
  const Config config = load_and_resolve(flags.estimate, overrides, hosts.world_size, open).config;
  return facts_of(config.training.device == DeviceChoice::kCuda, limit, hosts);
}

void write_file(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "we");
  const bool written =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (!written || !closed) {
    throw StorageError(
        describe_write_failure("write", path, errno, static_cast<std::int64_t>(text.size())));
  }
}

/// The estimates that other tools print for the same model and hosts.
void print_others(const Flags& flags, const Config& config, const Hosts& hosts) {
  const ModelSpec& model = config.model;
  if (flags.deepspeed) {
    const DeepSpeedModelSize size = deepspeed_model_size(model);
    const DeepSpeedHardware hardware{.gpus_per_node = hosts.most_ranks,
                                     .nodes = static_cast<std::int64_t>(hosts.ranks.size())};
    fmt::print("{}\n{}", deepspeed_zero2_text(size.total_params, hardware),
               deepspeed_zero3_text(size, hardware));
  }
  if (flags.huggingface) {
    fmt::print("{}", huggingface_text(flags.estimate.run.config, huggingface_estimates(model)));
  }
  if (flags.published) {
    const Mesh mesh = mesh_of(config, hosts.world_size);
    fmt::print("{}", published_text(model, config.data.sequence_length,
                                    {.micro_batch_size = *config.batch.micro_batch_size,
                                     .tensor = mesh.degree(Axis::kTensor),
                                     .pipeline = mesh.degree(Axis::kPipeline),
                                     .interleave = config.pipeline.virtual_stages,
                                     .data = mesh.degree(kDataAxes),
                                     .micro_batches = *config.batch.gradient_accumulation_steps}));
  }
}

std::string picture(const MemoryEstimate& estimate, const std::string& config) {
  const Mesh& mesh = estimate.outline.mesh;
  MemorySvgText text{
      .title = fmt::format("{}: memory of rank {} during a step", config, estimate.rank),
      .subtitle =
          fmt::format("{} rank{} = {}; {} parameters; {} beside the plan", mesh.world_size(),
                      mesh.world_size() == 1 ? "" : "s", degrees_text(mesh),
                      estimate.outline.parameters, size_text(total_bytes(estimate.overhead))),
      .peak = estimate.peak,
      .overhead_bytes = total_bytes(estimate.overhead)};
  if (estimate.limit) {
    text.limit_bytes = estimate.limit->bytes;
    text.limit_name = estimate.limit->name;
  }
  return memory_svg(estimate.timeline, text);
}

int estimate(const Flags& flags) {
  set_up_logging("[estimate-memory] ");
  const Hosts hosts = count(estimated_hosts(flags.estimate));
  const std::vector<std::string> overrides = to_overrides(flags.estimate);
  std::optional<MemoryLimit> limit;
  if (!flags.device_memory.empty()) limit = parse_memory_limit(flags.device_memory);
  const MachineFacts facts = facts_of(flags, limit, overrides, hosts);
  const ConfigWith config_with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return load_and_resolve(flags.estimate, std::move(all), hosts.world_size, facts);
  };
  const LoadedConfig loaded = config_with({});
  const Config& config = loaded.config;
  for (const std::string& notice : loaded.notices)
    spdlog::info("{}", notice);
  for (const std::string& warning : loaded.warnings)
    spdlog::warn("{}", warning);
  if (flags.deepspeed || flags.huggingface || flags.published) {
    print_others(flags, config, hosts);
    return kExitSuccess;
  }
  const EstimatedDevice device = choose_device(facts, config, hosts);
  if (flags.matrix) {
    const std::vector<MatrixRow> rows = memory_matrix(config_with, hosts.world_size, device);
    fmt::print("{}", flags.json  ? matrix_json(rows, limit)
                     : flags.csv ? matrix_csv(rows, limit)
                                 : matrix_text(rows, limit));
    return kExitSuccess;
  }
  const MemoryEstimate estimate =
      estimate_memory(config_with, hosts.world_size, device, limit, rooms_of(flags, hosts));
  if (!flags.svg.empty()) {
    write_file(flags.svg, picture(estimate, flags.estimate.run.config));
    spdlog::info("picture={}", flags.svg);
  }
  fmt::print("{}", flags.json ? to_json(estimate, config) : to_text(estimate, config));
  return !estimate.fit || estimate.fit->fits ? kExitSuccess : kExitPreflight;
}

}  // namespace

void add_estimate_memory_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<Flags>();
  CLI::App* const command =
      app.add_subcommand("estimate-memory",
                         "Compute the memory of every rank of a run, to the byte, without starting "
                         "it");
  add_estimate_flags(*command, flags->estimate);
  command->option_defaults()->group("What is printed");
  CLI::Option* const limit = command->add_option(
      "--device-memory", flags->device_memory,
      "Memory of a rank: 80GiB, 80GB, or an accelerator (V100-32GB, A100-80GB, "
      "H100, …); prints whether the run fits, the longest sequence and the largest "
      "micro-batch that fit, and what would make it fit");
  command
      ->add_option("--host-memory", flags->host_memory,
                   "With --device-memory: memory of a host (512GiB), into which what its ranks "
                   "offload to it must fit as well")
      ->needs(limit);
  command
      ->add_option("--host-disk", flags->host_disk,
                   "With --device-memory: free space on a host's disk (2TB), on which what its "
                   "ranks offload there must fit as well")
      ->needs(limit);
  command
      ->add_option("--device", flags->device,
                   "Device whose libraries are counted; default: training.device, where "
                   "\"auto\" means cuda with --device-memory and cpu without")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  CLI::Option* const matrix =
      command->add_flag("--matrix", flags->matrix,
                        "Print instead one row for each ZeRO stage and kind of recomputation");
  CLI::Option* const json = command->add_flag("--json", flags->json, "Print as JSON, in bytes");
  command->add_flag("--csv", flags->csv, "With --matrix: comma-separated, in bytes")
      ->needs(matrix)
      ->excludes(json);
  command
      ->add_option("--svg", flags->svg,
                   "Draw the memory of a step over time, stacked by component, into FILE")
      ->type_name("FILE")
      ->excludes(matrix);
  CLI::Option* const deepspeed =
      command->add_flag("--deepspeed-compat", flags->deepspeed,
                        "Print what DeepSpeed's ZeRO-2 and ZeRO-3 estimators print");
  CLI::Option* const huggingface = command->add_flag(
      "--huggingface-compat", flags->huggingface, "Print what the Model Memory Calculator prints");
  CLI::Option* const published = command->add_flag(
      "--published", flags->published,
      "Print what the formulas of the Megatron and ZeRO papers give for a GPT of these sizes");
  for (CLI::Option* const other : {deepspeed, huggingface, published}) {
    for (CLI::Option* const own : {limit, matrix, json})
      other->excludes(own);
  }
  command->footer(
      "Examples:\n"
      "  dstrain estimate-memory configs/gpt2-124m.json --num_gpus 4 --zero 2\n"
      "  dstrain estimate-memory configs/llama-70b-tp8-pp8.json \\\n"
      "    --num_nodes 8 --num_gpus 8 --device-memory H100 --host-memory 1TB\n"
      "  dstrain estimate-memory ~/models/Llama-2-7b --num_gpus 8 --precision bf16 \\\n"
      "    --micro-batch 4 --matrix\n"
      "  dstrain estimate-memory configs/gpt2-xl-zero2.json --num_gpus 8 --svg step.svg\n"
      "Exit codes: 0 success, 2 usage or config, 3 does not fit into --device-memory.");
  command->callback([flags, &chosen] { chosen = [flags] { return estimate(*flags); }; });
}

}  // namespace dstrain
