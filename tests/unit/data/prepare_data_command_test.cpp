// The command as a user meets it: its own process, its exit codes, what it prints where.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/harness/skip.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Contains;
using test::ScratchFolder;
using test::write_file;

struct Ended {
  int exit_code;
  std::string standard_output;
  std::string standard_error;
};

/// Runs `dstrain prepare-data ARGUMENTS` from a shell.
Ended run(const ScratchFolder& folder,
          const std::string& arguments,
          const std::string& before = "") {
  const char* binary = std::getenv("DSTRAIN_BINARY");
  REQUIRE(binary != nullptr);
  const std::string out = folder / "stdout";
  const std::string err = folder / "stderr";
  const int status = std::system(
      (before + "'" + binary + "' prepare-data " + arguments + " >" + out + " 2>" + err).c_str());
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), test::read_file(out), test::read_file(err)};
}

TEST_CASE("prepare-data says what it made, for people and as JSON", "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a.h", "int a;\n");
  write_file(folder / "in/b.hpp", "int b;\n");
  write_file(folder / "in/c.md", "# c\n");
  const std::string input = "--input " + (folder / "in") + " --validation 0 ";
  const Ended people = run(folder, input + "--output " + (folder / "p"));
  CHECK(people.exit_code == 0);
  CHECK_THAT(people.standard_output,
             Contains("3 documents") && Contains("18 tokens") && Contains(folder / "p/train.bin"));
  const Ended json =
      run(folder, input + "--output " + (folder / "j") + " --extensions .h,hpp --json");
  REQUIRE(json.exit_code == 0);
  CHECK(nlohmann::json::parse(json.standard_output)["train"]["tokens"] == 14);
}

TEST_CASE("prepare-data ends with 2 for wrong use and 6 for a full disk", "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a", std::string(300000, 'a'));
  const std::string output = " --output " + (folder / "out");
  CHECK(run(folder, "--output x").exit_code == 2);
  CHECK(run(folder, "--input x --no-such-flag" + output).exit_code == 2);
  CHECK(run(folder, "--tokenizer bytes --train-sentencepiece 300 --input x" + output).exit_code ==
        2);
  const Ended missing = run(folder, "--input " + (folder / "absent") + output);
  CHECK(missing.exit_code == 2);
  CHECK_THAT(missing.standard_error, Contains((folder / "absent") + ": No such file"));
  // A limit of 100 kB a file stands for the full disk.
  const Ended full = run(folder, "--validation 0 --input " + (folder / "in") + output,
                         "trap '' XFSZ; ulimit -f 100; ");
  CHECK(full.exit_code == 6);
  CHECK_THAT(full.standard_error, Contains((folder / "out/train.bin") + ".partial"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("prepare-data refuses JSON, and takes it where it is told to", "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a.jsonl", "{\"text\": \"one\"}\n");
  write_file(folder / "in/b.txt", "two\n");
  const std::string flags =
      "--validation 0 --input " + (folder / "in") + " --output " + (folder / "out");
  const Ended refused = run(folder, flags);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.standard_error, Contains(folder / "in/a.jsonl") &&
                                         Contains("--exclude '*.jsonl'") &&
                                         Contains("--as-text jsonl"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  const Ended left_out = run(folder, flags + " --exclude '*.jsonl,*.gz'");
  CHECK(left_out.exit_code == 0);
  CHECK_THAT(left_out.standard_output, Contains("1 documents") && Contains("left out (--exclude)"));
  const Ended taken = run(folder, flags + " --overwrite --as-text .jsonl,json");
  CHECK(taken.exit_code == 0);
  CHECK_THAT(taken.standard_output, Contains("2 documents"));
  const Ended wrong = run(folder, flags + " --overwrite --as-text gz");
  CHECK(wrong.exit_code == 2);
  CHECK_THAT(wrong.standard_error, Contains("--as-text gz") && Contains("jsonl"));
}

}  // namespace
}  // namespace dstrain
