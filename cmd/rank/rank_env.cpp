#include "cmd/rank/rank_env.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "cmd/launch/facts_text.h"
#include "cmd/launch/token_strength.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

constexpr std::array<std::pair<Progress, std::string_view>, 3> kProgressNames = {
    {{Progress::kNone, "none"}, {Progress::kLines, "lines"}, {Progress::kTerminal, "terminal"}}};

int parse_number(std::string_view name, std::string_view text, int lowest, int highest) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < lowest ||
      number > highest) {
    throw ConfigError(
        fmt::format("{}=\"{}\" in the environment: expected a whole number from {} to {}", name,
                    text, lowest, highest));
  }
  return number;
}

constexpr const char* kCollectiveTimeout = "DSTRAIN_COLLECTIVE_TIMEOUT";
constexpr int kUnlimited = std::numeric_limits<int>::max();

constexpr std::string_view kOwnRank = "RANK";

/// The names of the variables that one starter of processes sets. nullptr: it sets none.
struct Names {
  const char* mark;  ///< only where this is set, too
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;
  const char* cross_rank;
  const char* cross_size;
};
constexpr std::array kStarters = {
    // torchrun
    Names{"LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
          "GROUP_WORLD_SIZE"},
    // dstrain, DeepSpeed, Horovod
    Names{nullptr, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"},
    // srun; SLURM_NTASKS is also set in a batch script, which is not a task of a step
    Names{nullptr, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_NODEID",
          "SLURM_STEP_NUM_NODES"},
    // mpirun of Open MPI, and of MPICH and Intel MPI
    Names{nullptr, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr, nullptr},
    Names{nullptr, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr, nullptr},
};

std::string required(const EnvironmentLookup& lookup, const char* name, std::string_view why) {
  std::optional<std::string> value = lookup(name);
  if (!value || value->empty()) {
    throw ConfigError(fmt::format("{} is not set in the environment; {}", name, why));
  }
  return *value;
}

/// Fills the six numbers from the first starter that left its mark.
void read_place(RankEnv& env, const EnvironmentLookup& lookup) {
  for (const Names& names : kStarters) {
    if (names.mark != nullptr && !lookup(names.mark)) continue;
    const std::optional<std::string> world = lookup(names.world_size);
    const std::optional<std::string> rank = lookup(names.rank);
    const bool is_own = names.rank == kOwnRank;
    if (!world || !rank) {
      if (is_own && (world || rank)) {
        required(lookup, rank ? names.world_size : names.rank,
                 fmt::format("but {} is: a rank needs both", rank ? names.rank : names.world_size));
      }
      continue;
    }
    const auto number = [&](const char* name, int lowest, int highest, int otherwise) {
      const std::optional<std::string> text = name == nullptr ? std::nullopt : lookup(name);
      return text ? parse_number(name, *text, lowest, highest) : otherwise;
    };
    env.world_size = parse_number(names.world_size, *world, 1, kUnlimited);
    env.rank = parse_number(names.rank, *rank, 0, env.world_size - 1);
    env.cross_size = number(names.cross_size, 1, env.world_size, 0);
    const int even_share = env.cross_size > 0 ? env.world_size / env.cross_size : 1;
    env.local_size = number(names.local_size, 1, env.world_size, even_share);
    env.local_rank = number(names.local_rank, 0, env.world_size - 1, env.rank % env.local_size);
    if (env.cross_size == 0) {
      env.cross_size = (env.world_size + env.local_size - 1) / env.local_size;
    }
    env.cross_rank = number(names.cross_rank, 0, env.cross_size - 1, env.rank / env.local_size);
    return;
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> to_env(const RankEnv& env) {
  std::vector<std::pair<std::string, std::string>> variables = {
      {"RANK", std::to_string(env.rank)},
      {"WORLD_SIZE", std::to_string(env.world_size)},
      {"LOCAL_RANK", std::to_string(env.local_rank)},
      {"LOCAL_SIZE", std::to_string(env.local_size)},
      {"CROSS_RANK", std::to_string(env.cross_rank)},
      {"CROSS_SIZE", std::to_string(env.cross_size)},
      {"MASTER_ADDR", env.master_address},
      {"MASTER_PORT", std::to_string(env.master_port)},
      {kTokenVariable, env.token},
      {"DSTRAIN_LIFELINE", env.has_lifeline ? "1" : "0"},
  };
  if (!env.listen_address.empty()) {
    variables.emplace_back("DSTRAIN_LISTEN_ADDRESS", env.listen_address);
  }
  if (!env.own_address.empty()) variables.emplace_back("DSTRAIN_OWN_ADDRESS", env.own_address);
  if (!env.job.empty()) variables.emplace_back("DSTRAIN_JOB", env.job);
  if (env.restart > 0) variables.emplace_back("DSTRAIN_RESTART", std::to_string(env.restart));
  if (env.machine) variables.emplace_back("DSTRAIN_MACHINE", to_text(*env.machine));
  if (env.gpu >= 0) variables.emplace_back("DSTRAIN_GPU", std::to_string(env.gpu));
  if (env.ranks_on_gpu > 1) {
    variables.emplace_back("DSTRAIN_RANKS_ON_GPU", std::to_string(env.ranks_on_gpu));
  }
  if (env.may_share_gpus) variables.emplace_back("DSTRAIN_SHARE_GPUS", "1");
  if (env.threads > 0) {
    variables.emplace_back("DSTRAIN_THREADS", std::to_string(env.threads));
    variables.emplace_back("OMP_NUM_THREADS", std::to_string(env.threads));
  }
  if (env.collective_timeout_s > 0) {
    variables.emplace_back(kCollectiveTimeout, std::to_string(env.collective_timeout_s));
  }
  for (const auto& [progress, name] : kProgressNames) {
    if (env.progress == progress) variables.emplace_back("DSTRAIN_PROGRESS", name);
  }
  return variables;
}

RankEnv from_env(const EnvironmentLookup& lookup) {
  RankEnv env;
  read_place(env, lookup);
  if (env.world_size > 1) {
    const std::string why =
        fmt::format("with {} ranks it must be the same for all of them", env.world_size);
    constexpr int kHighestPort = 65535;
    env.master_address =
        required(lookup, "MASTER_ADDR", why + ": a name or address of rank 0's host");
    env.master_port = static_cast<std::uint16_t>(
        parse_number("MASTER_PORT", required(lookup, "MASTER_PORT", why + ": a free port there"), 1,
                     kHighestPort));
    // torchrun itself listens at MASTER_PORT, on the host of rank 0.
    if (lookup("TORCHELASTIC_USE_AGENT_STORE") == "True" && env.master_port < kHighestPort) {
      ++env.master_port;
    }
    env.token = required(lookup, kTokenVariable,
                         why +
                             ": a secret that keeps strangers out, such as export "
                             "DSTRAIN_TOKEN=$(dstrain token)");
    if (const std::string guess = why_guessable(env.token); !guess.empty()) {
      throw ConfigError(fmt::format("{} in the environment can be guessed: it {}; {}",
                                    kTokenVariable, guess, kTokenHowTo));
    }
  }
  env.listen_address = lookup("DSTRAIN_LISTEN_ADDRESS").value_or("");
  env.own_address = lookup("DSTRAIN_OWN_ADDRESS").value_or("");
  env.job = lookup("DSTRAIN_JOB").value_or("");
  if (const auto restart = lookup("DSTRAIN_RESTART")) {
    env.restart = parse_number("DSTRAIN_RESTART", *restart, 0, kUnlimited);
  }
  if (const auto text = lookup("DSTRAIN_MACHINE")) {
    try {
      env.machine = parse_facts(*text);
    } catch (const std::invalid_argument& error) {
      throw ConfigError(
          fmt::format("DSTRAIN_MACHINE=\"{}\" in the environment: {}", *text, error.what()));
    }
  }
  if (const auto gpu = lookup("DSTRAIN_GPU")) {
    env.gpu = parse_number("DSTRAIN_GPU", *gpu, 0, kUnlimited);
  }
  if (const auto ranks = lookup("DSTRAIN_RANKS_ON_GPU")) {
    env.ranks_on_gpu = parse_number("DSTRAIN_RANKS_ON_GPU", *ranks, 1, env.world_size);
  }
  if (const auto share = lookup("DSTRAIN_SHARE_GPUS")) {
    env.may_share_gpus = parse_number("DSTRAIN_SHARE_GPUS", *share, 0, 1) == 1;
  }
  if (const auto threads = lookup("DSTRAIN_THREADS")) {
    env.threads = parse_number("DSTRAIN_THREADS", *threads, 1, kUnlimited);
  }
  if (const auto seconds = lookup(kCollectiveTimeout)) {
    env.collective_timeout_s = parse_number(kCollectiveTimeout, *seconds, 1, kUnlimited);
  }
  if (const auto text = lookup("DSTRAIN_PROGRESS")) {
    for (const auto& [progress, name] : kProgressNames) {
      if (*text == name) env.progress = progress;
    }
    if (!env.progress) {
      throw ConfigError(fmt::format(
          "DSTRAIN_PROGRESS=\"{}\" in the environment: expected none, lines or terminal", *text));
    }
  }
  env.has_lifeline = lookup("DSTRAIN_LIFELINE") == "1";
  return env;
}

std::optional<std::string> process_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace dstrain
