// EstimateFlags: what estimate-memory takes. A flag such as --zero 2 is short for --set of a key
// and means exactly that key, so that what was estimated can be launched with the same --set's; and
// the hosts are a hostfile's or a number of them that need not exist.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cmd/run_flags.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

struct EstimateFlags {
  RunFlags run;  ///< CONFIG may be a model's folder or config.json as well
  std::optional<std::int64_t> zero;
  std::optional<std::int64_t> micro_batch;      ///< sequences
  std::optional<std::int64_t> sequence_length;  ///< tokens
  std::optional<std::int64_t> accumulation;     ///< micro-batches of a step
  std::string precision;                        ///< fp32 | bf16 | fp16; "": as the file says
  std::optional<std::int64_t> tensor_parallel;
  std::optional<bool> sequence_parallel;
  std::optional<std::int64_t> pipeline;  ///< stages
  std::string recompute;                 ///< none | selective | full; "": as the file says
  std::string optimizer;                 ///< a type; "": as the file says
  std::string hostfile;
  launcher::HostFilter hosts;  ///< --num_nodes, --num_gpus
};

void add_estimate_flags(CLI::App& command, EstimateFlags& flags);

/// The --set's of flags.run, preceded by those that the other flags stand for. Looks into the file
/// for what yields: the third of the batch identity, and another optimizer's parameters. Throws
/// ConfigError, also where a flag and a --set give the same key.
std::vector<std::string> to_overrides(const EstimateFlags& flags);

/// Reads CONFIG with these --set's and resolves it for that many ranks on these machines. Throws
/// ConfigError.
LoadedConfig load_and_resolve(const EstimateFlags& flags,
                              std::vector<std::string> overrides,
                              int world_size,
                              const MachineFacts& facts = {});

/// Returns the hostfile's hosts, or --num_nodes hosts node1… of --num_gpus slots each; by default
/// one host of one slot. Contacts none; asks no name server. Throws HostfileError.
std::vector<launcher::Host> estimated_hosts(const EstimateFlags& flags);

}  // namespace dstrain
