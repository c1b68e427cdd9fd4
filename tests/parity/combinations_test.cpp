// The parity matrix as tests, each combination a section: see combination.h for what they are,
// measure.h for what is demanded of each, parity_matrix for the same as a table. ctest runs the
// fast ones; "[slow]" as an argument runs the others.
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "tests/harness/recorded_traffic.h"
#include "tests/harness/sweep.h"
#include "tests/parity/measure.h"

namespace dstrain::test {
namespace {

// Catch2 runs a test case once for each section; single-rank runs are the same for all of them.
ReferenceRuns& references() {
  static ReferenceRuns runs;
  return runs;
}

void check_combinations(bool fast) {
  int met = 0;
  for (const Combination& combination : all_combinations()) {
    if (combination.fast != fast || met++ % testing::one_in_if_sanitized(3) != 0) {
      continue;
    }
    DYNAMIC_SECTION(combination.name()) {
      const Measurement measured = measure(combination, references());
      CAPTURE(combination.bound.because);
      CHECK(measured.loss_difference <= combination.bound.loss);
      CHECK(measured.norm_difference <= combination.bound.norm);
      CHECK(measured.learns);
      CHECK(measured.faults == std::vector<std::string>{});
    }
  }
}

TEST_CASE("combinations of parallelisms follow the single-rank run of the same global batch",
          "[parity][tensor][pipeline][zero][traffic][memory]") {
  check_combinations(true);
}

TEST_CASE("and so do all others", "[.][slow][parity][tensor][pipeline][zero][traffic][memory]") {
  check_combinations(false);
}

TEST_CASE("a step that does not issue what its plan lists is reported", "[parity][traffic]") {
  const TinyOptions options{.accumulation = 2, .zero_stage = 2, .tensor_parallel = {.size = 2}};
  const RunPlan plan = make_run_plan(tiny_config(options, 4), 4, 1);
  std::vector<CollectiveLog::Entry> entries;
  for (const Transfer& transfer : plan.traffic.transfers()) {
    entries.push_back({.op = transfer.op,
                       .group = find_group(plan.groups, transfer.group)->name,
                       .purpose = transfer.purpose,
                       .dtype = transfer.dtype,
                       .elements = transfer.elements});
  }
  REQUIRE(entries.size() > 10);
  CHECK(difference(plan, entries).empty());
  const auto told = [&](auto&& change) {
    std::vector<CollectiveLog::Entry> changed = entries;
    change(changed);
    return !difference(plan, changed).empty();
  };
  using Entries = std::vector<CollectiveLog::Entry>;
  CHECK(told([](Entries& all) { all.pop_back(); }));
  CHECK(told([](Entries& all) { all.push_back(all.back()); }));
  CHECK(told([](Entries& all) { all[5].elements += 1; }));
  CHECK(told([](Entries& all) { all[5].dtype = DType::kF16; }));
  CHECK(told([](Entries& all) { all[5].purpose = Purpose::kIntegrity; }));
  CHECK(told([](Entries& all) { all[5].op = Op::kBroadcast; }));
  CHECK(told([](Entries& all) { all[5].group = "world"; }));
  CHECK(told([](Entries& all) { std::swap(all.front(), all.back()); }));
}

TEST_CASE("the names of combinations are unique", "[parity]") {
  std::set<std::string> names;
  for (const Combination& combination : all_combinations()) {
    CHECK(names.insert(combination.name()).second);
  }
}

}  // namespace
}  // namespace dstrain::test
