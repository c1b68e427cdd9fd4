// The command line as a user meets it: help, mistyped flags, completions in real shells, the manual
// page in a real formatter.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/program.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using testing::Program;

constexpr std::chrono::milliseconds kPatience{20'000};

struct Answer {
  int code = -1;
  std::string out;
  std::string err;
};

Answer run(std::vector<std::string> argv) {
  Program program(argv);
  const auto code = program.wait(kPatience);
  return {code.value_or(-1), program.out(), program.err()};
}

Answer run_dstrain(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), testing::dstrain_binary());
  return run(arguments);
}

Answer shell(const std::string& script) {
  return run({"/bin/bash", "-c", script, "bash", testing::dstrain_binary()});
}

bool is_installed(const std::string& program) {
  return shell("command -v " + program).code == 0;
}

const std::array kCommands = {"launch",   "status",       "train",      "estimate-memory",
                              "generate", "prepare-data", "completion", "convert-checkpoint",
                              "man",      "runs",         "report",     "why",
                              "trace",    "watch",        "evaluate"};

TEST_CASE("help fits into 80 columns, and is the same by both ways", "[cmd][help]") {
  if (testing::no_dstrain_here()) return;
  for (const std::string command : kCommands) {
    const Answer help = run_dstrain({"help", command});
    CHECK(help.code == 0);
    CHECK(help.out == run_dstrain({command, "--help"}).out);
    CHECK_THAT(help.out, Contains("Usage: dstrain " + command) && Contains("--help"));
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) {
      std::size_t columns = 0;
      for (const char c : line)
        columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
      INFO(command << ": " << line);
      CHECK(columns <= 80);
    }
    CHECK_THAT(run_dstrain({"help"}).out, Contains("\n  " + command + " "));
  }
  CHECK_THAT(run_dstrain({"help"}).out, !Contains("agent"));  // which is not for use by hand
  CHECK(run_dstrain({"help"}).out == run_dstrain({"--help"}).out);
}

TEST_CASE("a mistyped flag, value or command is reported in one sentence, with the nearest",
          "[cmd][flags]") {
  if (testing::no_dstrain_here()) return;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"lanch", "x"}, R"(there is no command "lanch"; did you mean "launch"?)"},
      {{"help", "trian"}, R"(there is no command "trian"; did you mean "train"?)"},
      {{"launch", "--num_gpu", "2", "x"},
       R"(dstrain launch has no flag "--num_gpu"; did you mean "--num_gpus"?)"},
      {{"launch", "--max-restart=2", "x"}, R"(did you mean "--max-restarts"?)"},
      {{"launch", "--host", "hosts", "x"}, R"(did you mean "--hostfile"?)"},
      {{"launch", "--frobnicate", "x"},
       R"(has no flag "--frobnicate"; dstrain help launch lists them)"},
      {{"launch", "--launcher", "shs", "x"}, R"(--launcher "shs": expected )"},
      {{"launch", "--launcher", "shs", "x"}, R"(did you mean "ssh"?)"},
      {{"launch", "--num_gpus", "two", "x"}, R"(--num_gpus "two": expected a whole number)"},
      {{"launch", "--master_port", "99999999", "x"}, "expected a whole number from 1 to 65535"},
      {{"launch", "--max-restarts", "-1", "x"},
       R"(--max-restarts "-1": expected a whole number, 0 or more)"},
      {{"launch", "--hostfile", "--check", "x"}, "--hostfile needs a value, FILE; --check follows"},
      {{"launch", "--check=yes", "x"}, "--check is a switch: it takes no value"},
      {{"launch"}, "dstrain launch needs CONFIG; dstrain help launch says what it takes"},
      {{"launch", "x", "y"}, R"(dstrain launch does not expect "y")"},
      {{"launch", "--offline", "x"}, "--offline requires --check"},
      {{"completion", "tcsh"}, R"(SHELL "tcsh": expected bash, zsh or fish)"},
      {{"generate", "--temperature", "warm", "--checkpoint", "x"},
       R"(--temperature "warm": expected a number)"},
      {{"estimate-memory", "--precision", "bf61", "x"}, R"(did you mean "bf16"?)"},
      {{}, "expected a command; dstrain --help lists them"},
  };
  for (const auto& [arguments, sentence] : cases) {
    const Answer answer = run_dstrain(arguments);
    CHECK(answer.code == 2);
    CHECK(answer.out.empty());
    CHECK_THAT(answer.err, Catch::StartsWith("dstrain: error: ") && Contains(sentence));
    CHECK(std::count(answer.err.begin(), answer.err.end(), '\n') == 1);
  }
}

TEST_CASE("flags may be written with dashes or underscores", "[cmd][flags]") {
  if (testing::no_dstrain_here()) return;
  for (const char* spelling : {"--num_gpus=2", "--num-gpus=2", "--Num-Gpus=2"}) {
    const Answer answer =
        run_dstrain({"launch", spelling, "--check", "--offline", "configs/quickstart.json"});
    CHECK(answer.code == 0);
    CHECK_THAT(answer.out, Contains("ranks       2 ="));
  }
  // Behind "--" everything is an argument.
  CHECK_THAT(run_dstrain({"launch", "--", "--num-gpus"}).err, Contains("--num-gpus"));
  CHECK_THAT(run_dstrain({"launch", "--", "--num-gpus"}).err, !Contains("needs a value"));
}

/// Completes the last of `words` in bash as its Tab key does: with what it makes of "=".
std::string completed(const std::string& words) {
  const Answer answer = shell(
      "set -u; source <(\"$1\" completion bash) || exit 9\n"
      "COMP_WORDS=(" +
      words +
      "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()\n"
      "complete -p dstrain | grep -q -- '-F _dstrain' || exit 8\n"
      "_dstrain dstrain \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"\n"
      "echo ${COMPREPLY[@]+\"${COMPREPLY[@]}\"}");
  CHECK(answer.code == 0);
  CHECK(answer.err == "");
  return answer.out;
}

TEST_CASE("bash completes commands, flags, values, files and the config's keys",
          "[cmd][completion]") {
  if (testing::no_dstrain_here()) return;
  CHECK(completed("dstrain la") == "launch\n");
  CHECK(completed("dstrain --ver") == "--version\n");
  CHECK(completed("dstrain help est") == "estimate-memory\n");
  CHECK(completed("dstrain completion ''") == "bash zsh fish\n");
  CHECK(completed("dstrain launch --accept") == "--accept-new-host-keys\n");
  CHECK(completed("dstrain launch --hostfile LICEN") == "LICENSE\n");
  CHECK(completed("dstrain launch configs/quickst") == "configs/quickstart.json\n");
  CHECK(completed("dstrain launch -H hosts --launcher s") == "slurm ssh\n");
  CHECK(completed("dstrain launch --launcher = sl") == "slurm\n");
  CHECK(completed("dstrain launch --launcher =") == "libssh2 openssh pdsh slurm ssh\n");
  CHECK(completed("dstrain launch --set optimizer.params.mom") == "optimizer.params.momentum=\n");
  CHECK(completed("dstrain generate --checkpoint confi") == "configs\n");  // folders alone
  CHECK(completed("dstrain generate --dtype ''") == "fp32 bf16 fp16\n");
  CHECK(completed("dstrain generate --lau") == "\n");
}

TEST_CASE("fish completes the same", "[cmd][completion]") {
  if (testing::no_dstrain_here()) return;
  if (!is_installed("fish")) {
    testing::skip("fish is not installed");
    return;
  }
  const auto fish = [](const std::string& line) {
    return shell(
               "\"$1\" completion fish > /dev/null && fish --no-config -c \"source ('$1' "
               "completion fish | psub); complete -C '" +
               line + "'\"")
        .out;
  };
  CHECK_THAT(fish("dstrain la"), Catch::StartsWith("launch\t"));
  CHECK_THAT(fish("dstrain launch --accept"), Catch::StartsWith("--accept-new-host-keys\t"));
  CHECK_THAT(fish("dstrain launch --launcher s"), Contains("slurm\t") && Contains("ssh\t"));
  CHECK_THAT(fish("dstrain launch --set optimizer.params.lr"), Contains("optimizer.params.lr="));
}

TEST_CASE("zsh takes its completions", "[cmd][completion]") {
  if (testing::no_dstrain_here()) return;
  if (!is_installed("zsh")) {
    testing::skip("zsh is not installed");
    return;
  }
  const Answer answer = shell(
      "zsh -f -c 'autoload -Uz compinit && compinit -D -u && source <(\"$1\" completion zsh) && "
      "print -r -- $_comps[dstrain] && functions _dstrain | grep -c launch' zsh \"$1\"");
  CHECK(answer.err == "");
  CHECK_THAT(answer.out, Catch::StartsWith("_dstrain\n") && !Contains("\n0\n"));
}

TEST_CASE("the manual page is sound roff and has every flag", "[cmd][man]") {
  if (testing::no_dstrain_here()) return;
  const Answer page = run_dstrain({"man"});
  REQUIRE(page.code == 0);
  CHECK_THAT(page.out, Contains("\\-\\-max\\-restarts\\-without\\-progress"));
  if (!is_installed("mandoc")) {
    testing::skip("mandoc is not installed");
    return;
  }
  // The page has no date, since the program has none.
  const Answer lint =
      shell("\"$1\" man | mandoc -T lint -W warning | grep -v 'missing date'; true");
  CHECK(lint.out == "");
  const Answer text = shell("\"$1\" man | mandoc -T utf8 | sed 's/.\\x08//g'");
  for (const char* shown : {"dstrain launch [FLAGS] CONFIG", "--max-restarts-without-progress N",
                            "dstrain launch -H hosts --exclude w3@w4:0 CONFIG --check",
                            "--sequence-parallel", "Exit codes: 0 success"}) {
    CHECK_THAT(text.out, Contains(shown));
  }
}

/// Sets a terminal's title, and rings: what a name must not make it do.
const std::string kCommandToTerminal = "\x1b]0;owned\x07";

TEST_CASE("no name in a message commands the terminal", "[cmd][terminal]") {
  const testing::TemporaryFolder folder;
  const auto is_tame = [](const Answer& answer, const std::string& shown) {
    INFO(answer.err);
    CHECK(answer.code != 0);
    CHECK(answer.code != -1);
    const std::string all = answer.out + answer.err;
    CHECK(std::none_of(all.begin(), all.end(), [](char c) {
      return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    }));
    CHECK_THAT(all, Contains(shown));
  };
  const std::string escaped = R"(\x1b]0;owned\x07)";
  SECTION("of a config's path") {
    is_tame(run_dstrain({"launch", "/no/such/" + kCommandToTerminal}), escaped);
    is_tame(run_dstrain({"train", "/no/such/" + kCommandToTerminal}), escaped);
  }
  SECTION("of a flag") {
    is_tame(run_dstrain({"launch", "--" + kCommandToTerminal}), escaped);
  }
  SECTION("of a host") {
    const std::string hostfile = (folder.path() / "hosts").string();
    std::ofstream(hostfile) << "w" << kCommandToTerminal << " slots=2\nlocalhost slots=x\n";
    is_tame(run_dstrain({"launch", "--hostfile", hostfile, "configs/quickstart.json"}), "hosts");
  }
  SECTION("of a key of a config") {
    const std::string config = (folder.path() / "config.json").string();
    std::ofstream(config) << R"({"a)"
                          << R"(\u001b]0;owned\u0007": 1, "model": {}})";
    is_tame(run_dstrain({"launch", config}), "owned");
  }
  SECTION("of a tensor") {
    const std::string header =
        R"({"a\u001b]0;owned\u0007":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})";
    std::uint64_t size = header.size();
    const std::string config = (folder.path() / "config.json").string();
    std::ofstream(config) << R"({"model_type": "gpt2", "n_positions": 8, "vocab_size": 8,
        "n_layer": 1, "n_head": 1, "n_embd": 8})";
    std::ofstream weights(folder.path() / "model.safetensors", std::ios::binary);
    weights.write(reinterpret_cast<const char*>(&size), sizeof size);
    weights << header << "0123";
    weights.close();
    is_tame(run_dstrain(
                {"convert-checkpoint", folder.path().string(), (folder.path() / "out").string()}),
            "");
    is_tame(run_dstrain({"generate", "--checkpoint", folder.path().string(), "--prompt", "a",
                         "--tokenizer", "bytes"}),
            "owned");
  }
}

}  // namespace
}  // namespace dstrain
