#include "launcher/hosts/slurm.h"

#include <map>

#include <catch2/catch.hpp>

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Strings = std::vector<std::string>;

std::string refusal_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const HostfileError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_CASE("Slurm's lists of hosts are expanded", "[slurm]") {
  CHECK(expand_hostlist("login") == Strings{"login"});
  CHECK(expand_hostlist("n1,n2") == Strings{"n1", "n2"});
  CHECK(expand_hostlist("n[1-3]") == Strings{"n1", "n2", "n3"});
  CHECK(expand_hostlist("n[08-11]") == Strings{"n08", "n09", "n10", "n11"});
  CHECK(expand_hostlist("n[01-02,7],gpu-[3]-ib,x") == Strings{"n01", "n02", "n7", "gpu-3-ib", "x"});
  CHECK(expand_hostlist("r[1-2]n[1-2]") == Strings{"r1n1", "r1n2", "r2n1", "r2n2"});
  CHECK(expand_hostlist("n[9-10]").back() == "n10");
}

TEST_CASE("Slurm's numbers for each host are expanded", "[slurm]") {
  CHECK(expand_counts("4") == std::vector{4});
  CHECK(expand_counts("2(x3),1") == std::vector{2, 2, 2, 1});
}

TEST_CASE("malformed lists are refused in a sentence that shows them", "[slurm]") {
  for (const char* text : {"", "n[", "n]", "n[1", "n[[1]]", "n[a-b]", "n[3-1]", "n[1-]", "a,,b",
                           "n[-1]", "n[1-99999999]", "n[1-999]m[1-999]", "n[99999999999]"}) {
    CHECK_THAT(refusal_of([&] { (void)expand_hostlist(text); }),
               Contains(std::string("\"") + text + "\""));
  }
  for (const char* text : {"", "x", "0", "-1", "2(x", "2(x)", "2(x0)", "1(x99999999)", "2,"}) {
    CHECK_THAT(refusal_of([&] { (void)expand_counts(text); }),
               Contains(std::string("\"") + text + "\""));
  }
}

TEST_CASE("an allocation's hosts have a slot for each of its tasks", "[slurm]") {
  std::map<std::string, std::string> variables{{"SLURM_JOB_NODELIST", "n[1-3]"},
                                               {"SLURM_TASKS_PER_NODE", "2(x2),1"}};
  const auto environment = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  CHECK(hosts_of_slurm_allocation(environment) ==
        std::vector<Host>{{"n1", {0, 1}}, {"n2", {0, 1}}, {"n3", {0}}});
  variables["SLURM_TASKS_PER_NODE"] = "2";
  CHECK_THAT(refusal_of([&] { (void)hosts_of_slurm_allocation(environment); }),
             Contains("3 hosts") && Contains("of 1"));
  variables.erase("SLURM_JOB_NODELIST");
  CHECK_THAT(refusal_of([&] { (void)hosts_of_slurm_allocation(environment); }),
             Contains("SLURM_JOB_NODELIST is not set") && Contains("salloc"));
}

TEST_CASE("srun starts one agent a host with all that the allocation has there", "[slurm]") {
  const Strings command =
      srun_command("/usr/bin/srun", {{"n1", {0, 1}}, {"n2", {0}}}, {"/opt/dstrain", "agent"});
  CHECK(command.front() == "/usr/bin/srun");
  CHECK(std::find(command.begin(), command.end(), "--nodelist=n1,n2") != command.end());
  CHECK(std::find(command.begin(), command.end(), "--ntasks=2") != command.end());
  CHECK(Strings(command.end() - 3, command.end()) == Strings{"--", "/opt/dstrain", "agent"});
}

}  // namespace
}  // namespace dstrain::launcher
