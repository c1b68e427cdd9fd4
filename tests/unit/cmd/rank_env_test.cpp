#include "cmd/rank/rank_env.h"

#include <map>
#include <string>

#include <catch2/catch.hpp>

#include "cmd/launch/job_secret.h"
#include "cmd/launch/token_strength.h"
#include "cmd/rank/own_address.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using Variables = std::map<std::string, std::string>;

EnvironmentLookup lookup_in(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

constexpr const char* kToken = "5f0c3b9a7e1d2468ace013579bdf8642";

RankEnv read(const Variables& variables) {
  return from_env(lookup_in(variables));
}

/// What two ranks need beyond their numbers.
Variables with_master(Variables variables) {
  variables.insert(
      {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}, {"DSTRAIN_TOKEN", kToken}});
  return variables;
}

TEST_CASE("a rank reads exactly what the launcher wrote", "[cmd][rank_env]") {
  const RankEnv written = GENERATE(values<RankEnv>(
      {{.rank = 5,
        .world_size = 8,
        .local_rank = 1,
        .local_size = 4,
        .cross_rank = 1,
        .cross_size = 2,
        .master_address = "fe80::1",
        .master_port = 65535,
        .token = kToken,
        .job = "5f0e",
        .restart = 3,
        .machine = MachineFacts{.cuda = true,
                                .name = "NVIDIA H100 80GB HBM3, \"late\"",
                                .multiplies_bf16 = true,
                                .multiplies_f16 = true,
                                .memory_bytes = std::int64_t{80} << 30,
                                .ranks_per_host = 8},
        .gpu = 6,
        .ranks_on_gpu = 2,
        .threads = 12,
        .progress = Progress::kTerminal,
        .has_lifeline = true},
       // Hosts with three ranks and two: nothing may be derived from the other numbers.
       {.rank = 3,
        .world_size = 5,
        .local_rank = 0,
        .local_size = 2,
        .cross_rank = 1,
        .cross_size = 2,
        .master_address = "w0",
        .master_port = 1,
        .token = "AcFgHj0aBcZyXw9123-_Qr",
        .machine = MachineFacts{.name = "AMD EPYC"},
        .may_share_gpus = true,
        .threads = 1,
        .progress = Progress::kLines,
        .has_lifeline = false}}));
  Variables variables;
  for (const auto& [name, value] : to_env(written))
    variables[name] = value;
  CHECK(read(variables) == written);
}

TEST_CASE("without variables there is one rank and nothing else is needed", "[cmd][rank_env]") {
  CHECK(read({}) == RankEnv{});
  const RankEnv alone = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  CHECK(alone.world_size == 1);
  CHECK(alone.cross_size == 1);
}

TEST_CASE("a task of srun knows its place", "[cmd][rank_env]") {
  const RankEnv env = read(with_master({{"SLURM_PROCID", "3"},
                                        {"SLURM_NTASKS", "4"},
                                        {"SLURM_STEP_NUM_TASKS", "4"},
                                        {"SLURM_STEP_NUM_NODES", "2"},
                                        {"SLURM_NODEID", "1"},
                                        {"SLURM_LOCALID", "1"}}));
  CHECK(env.rank == 3);
  CHECK(env.world_size == 4);
  CHECK(env.local_rank == 1);
  CHECK(env.local_size == 2);
  CHECK(env.cross_rank == 1);
  CHECK(env.cross_size == 2);
}

TEST_CASE("a worker of torchrun knows its place, and leaves torchrun its port", "[cmd][rank_env]") {
  Variables variables = with_master({{"RANK", "5"},
                                     {"WORLD_SIZE", "8"},
                                     {"LOCAL_RANK", "1"},
                                     {"LOCAL_WORLD_SIZE", "4"},
                                     {"GROUP_RANK", "1"},
                                     {"GROUP_WORLD_SIZE", "2"}});
  RankEnv env = read(variables);
  CHECK(env.rank == 5);
  CHECK(env.local_size == 4);
  CHECK(env.cross_rank == 1);
  CHECK(env.cross_size == 2);
  CHECK(env.master_port == 29500);  // an operator that sets the variables listens nowhere
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables.erase("GROUP_WORLD_SIZE");
  env = read(variables);
  CHECK(env.cross_size == 2);
  CHECK(env.master_port == 29501);
}

TEST_CASE("a batch script of Slurm that calls dstrain without srun is one rank",
          "[cmd][rank_env]") {
  CHECK(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}}) == RankEnv{});
}

TEST_CASE("a process of mpirun knows its place", "[cmd][rank_env]") {
  const RankEnv open_mpi = read(with_master({{"OMPI_COMM_WORLD_RANK", "2"},
                                             {"OMPI_COMM_WORLD_SIZE", "4"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  CHECK(open_mpi.rank == 2);
  CHECK(open_mpi.world_size == 4);
  CHECK(open_mpi.local_rank == 0);
  CHECK(open_mpi.local_size == 2);
  CHECK(open_mpi.cross_size == 2);
  CHECK(open_mpi.cross_rank == 1);
  const RankEnv mpich = read(with_master({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}));
  CHECK(mpich.rank == 1);
  CHECK(mpich.world_size == 2);
}

TEST_CASE("dstrain's own variables win over those of a scheduler around it", "[cmd][rank_env]") {
  const RankEnv env = read(with_master({{"RANK", "1"},
                                        {"WORLD_SIZE", "2"},
                                        {"LOCAL_SIZE", "2"},
                                        {"SLURM_PROCID", "0"},
                                        {"SLURM_STEP_NUM_TASKS", "1"}}));
  CHECK(env.rank == 1);
  CHECK(env.world_size == 2);
}

TEST_CASE("variables that are missing or make no sense are named", "[cmd][rank_env]") {
  const auto [variables, name] = GENERATE(table<Variables, std::string>({
      {{{"RANK", "0"}}, "WORLD_SIZE is not set"},
      {{{"WORLD_SIZE", "2"}}, "RANK is not set"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=\"2\""},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK=\"-1\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "two"}}, "WORLD_SIZE=\"two\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE=\"0\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "w0"}}, "MASTER_PORT is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "w0"}, {"MASTER_PORT", "70000"}},
       "MASTER_PORT=\"70000\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "w0"}, {"MASTER_PORT", "1"}},
       "DSTRAIN_TOKEN is not set"},
      {{{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "w0"},
        {"MASTER_PORT", "1"},
        {"DSTRAIN_TOKEN", "secret"}},
       "DSTRAIN_TOKEN in the environment can be guessed: it has 6 characters"},
      {{{"DSTRAIN_THREADS", "0"}}, "DSTRAIN_THREADS=\"0\""},
      {{{"DSTRAIN_PROGRESS", "loud"}}, "DSTRAIN_PROGRESS=\"loud\""},
  }));
  CHECK_THROWS_AS(read(variables), ConfigError);
  CHECK_THROWS_WITH(read(variables), Contains(name));
}

TEST_CASE("a token with fewer than 128 bits can be guessed", "[cmd][token]") {
  const auto [token, why] = GENERATE(table<std::string, std::string>({
      {"", "has 0 characters"},
      {"a", "has 1 character of"},
      {"secret", "has 6 characters of an alphabet of 26, 28 bits at most, and 128"},
      {"5f0c3b9a7e1d2468ace013579bdf864", "31 characters of an alphabet of 16, 124 bits"},
      {"5F0C3B9A7E1D2468ACE013579BDF864", "of an alphabet of 16"},
      {"zkXbo2/u0vdqPLmN7+Rys", "has 21 characters of an alphabet of 64, 126 bits"},
      {"31415926535897932384626433832795028841", "an alphabet of 10, 126 bits"},
      {"correct-horse-battery", "has 21 characters of an alphabet of 28"},
      {std::string(64, 'f'), "repeats its first 1 character"},
      {"0123456789abcdef0123456789abcdef", "repeats its first 16 characters"},
      {"0010110011010000101110010100110110", "has 34 characters"},
      {"00101100110100001011100101001101100111011", "has only 2 different characters"},
  }));
  CHECK_THAT(why_guessable(token), Contains(why));
}

TEST_CASE("tokens as people make them with a program are strong enough", "[cmd][token]") {
  CHECK(why_guessable(kToken).empty());
  CHECK(why_guessable("zkXbo2/u0vdqPLmN7+RysA==").empty());
  CHECK(why_guessable("c2a8a8d6-5d6e-4c39-9d0b-0f6a7f1e5b7c").empty());  // a UUID, 122 bits of it
  for (int i = 0; i < 200; ++i)
    CHECK(why_guessable(make_job_secret()).empty());
}

TEST_CASE("an attempt's secret depends on what is shared and on the salt, and shows neither",
          "[cmd][token]") {
  const std::string secret = derive_rank_secret("shared", "salt");
  CHECK(secret.size() == 64);
  CHECK(secret != derive_rank_secret("shared", "salt2"));
  CHECK(secret != derive_rank_secret("shared2", "salt"));
  // HMAC-SHA-256 by another program: printf "the ranks' secret\\0salt" | openssl dgst -hmac shared
  CHECK(secret == "a824c99547701f88a33f01b47feae1dfd0279ff85b23e8dcc24ded06a95c671c");
}

TEST_CASE("NCCL gets the interface of the address that others reach a rank by", "[cmd]") {
  CHECK(interface_with("127.0.0.1") == "lo");
  CHECK(interface_with("192.0.2.1").empty());  // of documentation, no host's own
}

}  // namespace
}  // namespace dstrain
