// The main of every test program: Catch2's, with skipped tests (Catch2 2 has no state for them) and
// one rule more: a test case that compares nothing fails, be it for an empty list of parameters.
#define CATCH_CONFIG_RUNNER
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/skip.h"

namespace dstrain::testing {
namespace {

constexpr int kSkippedCode = 77;  // SKIP_RETURN_CODE of dstrain_test()

struct Skip {
  std::string what;
  std::string why;
};

struct Tally {
  std::vector<Skip> skips;                   ///< in order, each once
  std::map<std::string, std::size_t> calls;  ///< of skip(), by test case
  int num_run = 0;                           ///< test cases of which something ran
  std::vector<std::string> empty;            ///< test cases that compared nothing
};

/// Catch's own registry of listeners and cases is a global too.
Tally& tally() {
  static Tally the_only_one;
  return the_only_one;
}

void add(Skip skip) {
  for (const Skip& known : tally().skips) {
    if (known.what == skip.what && known.why == skip.why) return;
  }
  tally().skips.push_back(std::move(skip));
}

class Counter final : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    const auto skips = tally().calls.find(stats.testInfo.name);
    const std::size_t checked = stats.totals.assertions.total();
    if (checked == 0) tally().empty.push_back(stats.testInfo.name);
    if (skips == tally().calls.end() || checked > skips->second) tally().num_run += 1;
  }
};
CATCH_REGISTER_LISTENER(Counter)

}  // namespace

void skip(const std::string& why) {
  SUCCEED("skipped: " << why);  // a case that compares nothing would fail
  const std::string name = Catch::getResultCapture().getCurrentTestName();
  tally().calls[name] += 1;
  add({name, why});
}

void leave_out(const std::string& what, const std::string& why) {
  add({what, why});
}

bool no_dstrain_here() {
  const char* const binary = std::getenv("DSTRAIN_BINARY");
  if (binary != nullptr && *binary != '\0') return false;
  skip("the dstrain program is not built here");
  return true;
}

}  // namespace dstrain::testing

int main(int argc, char** argv) {
  using dstrain::testing::tally;
  Catch::Session session;
  if (const int code = session.applyCommandLine(argc, argv); code != 0) return 1;
  const auto& config = session.configData();
  const bool lists = config.listTests || config.listTags || config.listTestNamesOnly ||
                     config.listReporters || config.showHelp || config.libIdentify;
  // Failures count up to 255, and 77 of them are no skip.
  if (session.run() != 0) return 1;
  if (lists) return 0;
  for (const std::string& name : tally().empty)
    std::printf("FAILED: \"%s\" compared nothing: an empty list of parameters?\n", name.c_str());
  if (!tally().empty.empty()) return 1;
  const std::string program = std::filesystem::path(argv[0]).filename().string();
  if (tally().num_run == 0 && tally().skips.empty()) {
    std::string asked;
    for (const std::string& spec : config.testsOrTags)
      asked += " " + spec;
    if (asked.empty()) {
      std::printf("%s: has no test\n", program.c_str());
      return 1;
    }
    dstrain::testing::leave_out("all of it", "no test case matches" + asked);
  }
  for (const auto& [what, why] : tally().skips)
    std::printf("SKIPPED %s: %s: %s\n", program.c_str(), what.c_str(), why.c_str());
  return tally().num_run == 0 ? dstrain::testing::kSkippedCode : 0;
}
