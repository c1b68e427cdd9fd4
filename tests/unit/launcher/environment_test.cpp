// Which variables reach the ranks of other hosts, in which order, and what is wrong with a file.
#include "launcher/hosts/environment.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <catch2/catch.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/processes.h"
#include "tests/harness/skip.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::EndsWith;

VariableLookup lookup_in(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

/// A home folder, and files in it.
struct Home {
  testing::TemporaryFolder folder;
  [[nodiscard]] std::string path(const std::string& name) const { return folder.path() / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  [[nodiscard]] Variables asked(const EnvironmentFlags& flags,
                                std::map<std::string, std::string> own = {}) const {
    own.try_emplace("HOME", folder.path());
    return asked_variables(flags, lookup_in(std::move(own)));
  }
};

TEST_CASE("of the launcher's variables, those of libraries are passed on, and no others",
          "[launcher][environment]") {
  for (const char* name : {"NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "UCX_TLS", "MV2_X", "PYTHONPATH",
                           "MLFLOW_TRACKING_URI", "WANDB_API_KEY", "HF_HOME", "OMP_WAIT_POLICY",
                           "DSTRAIN_X", "CUDA_DEVICE_MAX_CONNECTIONS"}) {
    CAPTURE(name);
    CHECK(is_passed(name));
  }
  for (const char* name : {"PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "SSH_AUTH_SOCK", "RANK",
                           "CUDA_VISIBLE_DEVICES", "OMP_PROC_BIND", "DSTRAIN_TOKEN"}) {
    CAPTURE(name);
    CHECK_FALSE(is_passed(name));
  }
  CHECK(passed_variables({{"PATH", "/bin"}, {"HF_HOME", "/hf"}}) == Variables{{"HF_HOME", "/hf"}});
}

TEST_CASE("later sources win: home's file, --env-file, --env", "[launcher][environment]") {
  const Home home;
  home.write(".deepspeed_env", "# comment\n\nA=home\nB=home\nC = home \r\nQ=\"a b\"\n");
  home.write("more", "B=file\nC=file\nEQUALS=a=b\nEMPTY=\n");
  const Variables variables =
      home.asked({.files = {home.path("more")}, .assignments = {"C=flag", "OWN"}}, {{"OWN", "o"}});
  CHECK(variables == Variables{{"A", "home"},
                               {"Q", "a b"},
                               {"B", "file"},
                               {"EQUALS", "a=b"},
                               {"EMPTY", ""},
                               {"C", "flag"},
                               {"OWN", "o"}});
}

TEST_CASE("DS_ENV_FILE names another file, also by its whole path", "[launcher][environment]") {
  const Home home;
  home.write(".deepspeed_env", "A=not this\n");
  home.write("mine", "A=this\n");
  CHECK(home.asked({}, {{"DS_ENV_FILE", "mine"}}) == Variables{{"A", "this"}});
  CHECK(home.asked({}, {{"DS_ENV_FILE", home.path("mine")}}) == Variables{{"A", "this"}});
}

TEST_CASE("a file that nobody named has to be the user's own, and is reported with what it sets",
          "[launcher][environment]") {
  const Home home;
  home.write(".deepspeed_env", "LD_PRELOAD=/tmp/x.so\nB=1\n");
  const std::string file = home.path(".deepspeed_env");
  std::vector<std::string> told;
  const auto ask = [&] {
    return asked_variables(
        {},
        [&](const std::string& name) {
          return name == "HOME" ? std::optional(home.path(".")) : std::nullopt;
        },
        [&](const std::string& path, const std::vector<std::string>& names) {
          told.push_back(path);
          told.insert(told.end(), names.begin(), names.end());
        });
  };
  CHECK(ask().size() == 2);
  REQUIRE(told.size() == 3);
  CHECK_THAT(told[0], EndsWith(".deepspeed_env"));
  CHECK(told[1] == "LD_PRELOAD");
  CHECK(told[2] == "B");

  REQUIRE(chmod(file.c_str(), 0646) == 0);
  CHECK_THROWS_WITH(ask(), Catch::Contains("every user may write to it: chmod o-w"));
  REQUIRE(chmod(file.c_str(), 0644) == 0);
  if (getuid() != 0) return testing::skip("only root can give a file to another user");
  REQUIRE(chown(file.c_str(), 4711, 4711) == 0);
  CHECK_THROWS_WITH(ask(), Catch::Contains("belongs to another user (uid 4711)"));
}

TEST_CASE("the value of a flag is bytes", "[launcher][environment]") {
  const Home home;
  const std::string awkward = " 'a'\n\"$(date)\" =\\ \xff";
  CHECK(home.asked({.assignments = {"A=" + awkward}}) == Variables{{"A", awkward}});
}

TEST_CASE("what is wrong with a file or a flag is said with its place", "[launcher][environment]") {
  const Home home;
  home.write("bad", "A=1\nno equals\n");
  home.write("export", "export A=1\n");
  CHECK_THROWS_WITH(home.asked({.files = {home.path("bad")}}),
                    EndsWith("bad:2: expected NAME=VALUE, found \"no equals\""));
  CHECK_THROWS_WITH(home.asked({.files = {home.path("export")}}),
                    EndsWith("export:1: expected NAME=VALUE, found \"export A=1\"; leave out "
                             "\"export\""));
  CHECK_THROWS_WITH(home.asked({.files = {home.path("none")}}),
                    EndsWith("none: No such file or directory"));
  CHECK_THROWS_WITH(home.asked({.assignments = {"MISSING"}}),
                    "--env MISSING: it is not set here; set it, or give its value: --env "
                    "MISSING=VALUE");
  CHECK_THROWS_WITH(home.asked({.assignments = {"2X=1"}}),
                    "--env 2X=1: expected NAME or NAME=VALUE");
}

}  // namespace
}  // namespace dstrain::launcher
