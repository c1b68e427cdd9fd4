// The file that algorithms of matrix products are kept in: who decides, and what survives.
#include "kernels/cuda/algorithm_file.h"

#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/emulated_cuda/temporary_file.h"

namespace dstrain::test {
namespace {

constexpr const char* kDevice = "a GPU, sm_90";

std::function<ChosenAlgorithm()> decides(const std::string& name) {
  return [name] { return ChosenAlgorithm{.name = name, .microseconds = 1.5}; };
}
ChosenAlgorithm must_not_decide() {
  FAIL("the file has it");
  return {};
}

std::string line_of(const std::string& device, const std::string& algorithm) {
  return fmt::format(R"({{"device":"{}","product":"p","algorithm":"{}","microseconds":1.5}})",
                     device, algorithm);
}

}  // namespace

TEST_CASE("what was decided is in the file for later readers", "[cuda][matmul]") {
  const TemporaryFile file;
  AlgorithmFile first(file.path(), kDevice);
  AlgorithmFile second(file.path(), kDevice);  // opened while there was nothing yet
  CHECK(first.choose("p", decides("a")).name == "a");
  CHECK(first.choose("p", must_not_decide).name == "a");
  CHECK(second.choose("p", must_not_decide) == ChosenAlgorithm{"a", 1.5});
  CHECK(second.choose("q", decides("b")).name == "b");
  CHECK(AlgorithmFile(file.path(), kDevice).choose("q", must_not_decide).name == "b");
  CHECK(AlgorithmFile(file.path(), "another GPU").choose("p", decides("c")).name == "c");
  CHECK(file.lines() == std::vector<std::string>{line_of(kDevice, "a"),
                                                 R"({"device":"a GPU, sm_90","product":"q",)"
                                                 R"("algorithm":"b","microseconds":1.5})",
                                                 line_of("another GPU", "c")});
}

TEST_CASE("processes that miss a product at once agree, and tear no line", "[cuda][matmul]") {
  constexpr int kProcesses = 8;
  constexpr int kProducts = 20;
  const TemporaryFile file;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      AlgorithmFile algorithms(file.path(), kDevice);
      std::string got;
      for (int product = 0; product < kProducts; ++product) {
        got +=
            algorithms.choose(fmt::format("p{}", product), decides(std::to_string(process))).name;
      }
      std::ofstream(fmt::format("{}.{}", file.path(), process)) << got;
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(file.lines().size() == kProducts);
  const auto got_by = [&](int process) {
    std::string got;
    std::ifstream(fmt::format("{}.{}", file.path(), process)) >> got;
    return got;
  };
  CHECK(got_by(0).size() == kProducts);
  for (int process = 1; process < kProcesses; ++process) {
    CHECK(got_by(process) == got_by(0));
  }
}

TEST_CASE("who decides last takes what was there first", "[cuda][matmul]") {
  const TemporaryFile file;
  AlgorithmFile slow(file.path(), kDevice);
  AlgorithmFile fast(file.path(), kDevice);
  const ChosenAlgorithm got = slow.choose("p", [&] {
    CHECK(fast.choose("p", decides("fast")).name == "fast");  // would wait if slow had the lock
    CHECK(slow.choose("part of p", decides("b")).name == "b");
    return ChosenAlgorithm{.name = "slow"};
  });
  CHECK(got.name == "fast");
  CHECK(file.lines().size() == 2);
}

TEST_CASE("a line whose writer died is removed, and decided again", "[cuda][matmul]") {
  const TemporaryFile file;
  file.write(line_of(kDevice, "a") + "\n" + R"({"device":"a GPU, sm_90","product":"q","algo)");
  AlgorithmFile algorithms(file.path(), kDevice);
  CHECK(algorithms.choose("p", must_not_decide).name == "a");
  CHECK(algorithms.choose("q", decides("b")).name == "b");
  CHECK(file.lines().size() == 2);
  CHECK(AlgorithmFile(file.path(), kDevice).choose("q", must_not_decide).name == "b");
}

TEST_CASE("of two lines for one product the first counts", "[cuda][matmul]") {
  const TemporaryFile file;
  file.write(line_of(kDevice, "a") + "\n" + line_of(kDevice, "b") + "\n");
  CHECK(AlgorithmFile(file.path(), kDevice).choose("p", must_not_decide).name == "a");
}

TEST_CASE("a file that is damaged or cannot be used is an error that names it", "[cuda][matmul]") {
  const TemporaryFile file;
  for (const char* const damage : {"no JSON at all", R"({"device": "a GPU, sm_90"})", "[]"}) {
    file.write(line_of(kDevice, "a") + "\n" + damage + "\n");
    CHECK_THROWS_WITH(AlgorithmFile(file.path(), kDevice),
                      Catch::StartsWith(file.path() + ":2: not a line of this file") &&
                          Catch::Contains("remove the line"));
  }
  CHECK_THROWS_WITH(AlgorithmFile(file.path() + "/below", kDevice),
                    Catch::Contains("cannot be opened for reading and writing: Not a directory"));
}

}  // namespace dstrain::test
