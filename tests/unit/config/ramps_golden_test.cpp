// Batches and sequences that grow, step by step as Megatron-LM and DeepSpeed have them:
// tests/golden/ramps.json (scripts/make_ramp_golden.py), from the config's JSON to the number.
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using nlohmann::json;

/// Value by value: [[from where on, value], …], at consecutive places.
class Changes {
 public:
  explicit Changes(const json& changes) : changes_(changes) {}

  std::int64_t at(std::int64_t place) {
    while (next_ < changes_.size() && changes_[next_][0].get<std::int64_t>() <= place) {
      value_ = changes_[next_++][1].get<std::int64_t>();
    }
    return value_;
  }
  [[nodiscard]] bool all_seen() const { return next_ == changes_.size(); }

 private:
  const json& changes_;
  std::size_t next_ = 0;
  std::int64_t value_ = 0;
};

json read_golden() {
  return json::parse(std::ifstream("tests/golden/ramps.json"));
}

}  // namespace

TEST_CASE("sequences grow as DeepSpeed's CurriculumScheduler says", "[spec][ramp][golden]") {
  const json golden = read_golden();
  REQUIRE(golden.at("lengths").size() == 10);
  for (const json& one : golden.at("lengths")) {
    json block = one.at("config");
    block["enabled"] = true;
    block["curriculum_type"] = "seqlen";
    CAPTURE(block.dump());
    const SequenceRamp ramp = load_tiny({"curriculum_learning=" + block.dump()}).config.curriculum;
    Changes expected(one.at("changes"));
    for (std::int64_t step = 1; step <= one.at("steps").get<std::int64_t>(); ++step) {
      INFO(step);
      REQUIRE(ramp.length_at(step) == expected.at(step));
    }
    CHECK(expected.all_seen());
  }
}

TEST_CASE("batches grow as Megatron-LM's calculator says", "[spec][ramp][golden]") {
  const json golden = read_golden();
  REQUIRE(golden.at("batches").size() == 8);
  for (const json& one : golden.at("batches")) {
    const auto number = [&](const char* key) { return one.at(key).get<std::int64_t>(); };
    CAPTURE(number("whole"), number("start"));
    const BatchRamp ramp{
        .start = number("start"), .increment = number("increment"), .samples = number("samples")};
    Changes expected(one.at("changes"));
    std::int64_t consumed = 0;
    while (consumed <= number("samples") + number("whole")) {
      INFO(consumed);
      const std::int64_t batch = ramp.batch_at(consumed, number("whole"));
      REQUIRE(batch == expected.at(consumed));
      consumed += batch;
    }
    CHECK(expected.all_seen());
  }
}

}  // namespace dstrain
