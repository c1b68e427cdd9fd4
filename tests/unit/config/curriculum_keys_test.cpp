// "curriculum_learning": how DeepSpeed's block is read, and what it refuses.
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

/// DeepSpeed's example, with these changes.
std::vector<std::string> curriculum(std::vector<std::string> changes = {}) {
  std::vector<std::string> all{
      R"(curriculum_learning={"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 8,
          "max_difficulty": 128, "schedule_type": "fixed_linear",
          "schedule_config": {"total_curriculum_step": 30, "difficulty_step": 4}})"};
  all.insert(all.end(), changes.begin(), changes.end());
  return all;
}

std::string error_of(const std::vector<std::string>& changes, int ranks = 1) {
  return config_error_of([&] {
    LoadedConfig loaded = load_tiny(curriculum(changes));
    resolve_config(loaded, ranks);
  });
}

}  // namespace

TEST_CASE("DeepSpeed's curriculum by sequence length is honoured", "[spec][ramp]") {
  CHECK(!load_tiny({}).config.curriculum.enabled);
  LoadedConfig loaded = load_tiny(curriculum());
  resolve_config(loaded, 1);
  CHECK(loaded.warnings.empty());
  const SequenceRamp& ramp = loaded.config.curriculum;
  CHECK(ramp.enabled);
  CHECK(ramp.shortest == 8);
  CHECK(ramp.longest == 128);
  CHECK(ramp.schedule == LengthSchedule::kFixedLinear);
  CHECK(ramp.total_steps == 30);
  CHECK(ramp.multiple_of == 4);
  CHECK(ramp.length_at(1) == 12);
  CHECK(ramp.length_at(1000) == 128);

  LoadedConfig off = load_tiny({R"(curriculum_learning={"enabled": false, "min_difficulty": 1})"});
  resolve_config(off, 1);
  CHECK(!off.config.curriculum.enabled);
}

TEST_CASE("a curriculum that is never at the end of a sequence says so", "[spec][ramp]") {
  LoadedConfig loaded = load_tiny(curriculum({"curriculum_learning.max_difficulty=64"}));
  resolve_config(loaded, 1);
  const auto tells = [&](const std::string& notice) {
    return notice.find("sequences grow to 64 tokens, and the rest of the 128") != notice.npos;
  };
  CHECK(std::count_if(loaded.notices.begin(), loaded.notices.end(), tells) == 1);
}

TEST_CASE("a curriculum without all that it needs is refused", "[spec][ramp]") {
  const std::string schedule = "curriculum_learning.schedule_config";
  const std::string type = "curriculum_learning.schedule_type=";
  CHECK(error_of({}).empty());
  CHECK_THAT(error_of({"curriculum_learning.curriculum_type=\"vocabularyrarity\""}),
             Contains("curriculum_learning.curriculum_type") &&
                 Contains("the length of sequences, \"seqlen\", is what grows"));
  CHECK_THAT(error_of({type + "\"custom\""}), Contains("fixed_linear"));
  CHECK_THAT(error_of({"curriculum_learning.min_difficulty=200"}),
             Contains("200 is more than max_difficulty 128"));
  CHECK_THAT(error_of({schedule + "={\"difficulty_step\": 4}"}),
             Contains(schedule + ".total_curriculum_step: is missing: write the number of steps"));
  CHECK_THAT(error_of({schedule + "={\"total_curriculum_step\": 4}"}),
             Contains(schedule + ".difficulty_step: is missing"));
  CHECK_THAT(error_of({type + "\"fixed_root\""}), Contains(schedule + ".root_degree: is missing"));
  CHECK(error_of({type + "\"fixed_root\"", schedule + ".root_degree=2"}).empty());
  const std::string discrete = type + "\"fixed_discrete\"";
  CHECK_THAT(error_of({discrete}), Contains(schedule + ".difficulty: is missing"));
  CHECK_THAT(error_of({discrete, schedule + ".difficulty=[8, 16]", schedule + ".max_step=[1, 2]"}),
             Contains("[8, 16] has 2 lengths, and max_step [1, 2] has 2 steps: expected one length "
                      "more"));
  CHECK_THAT(
      error_of({discrete, schedule + ".difficulty=[8, 16, 32]", schedule + ".max_step=[5, 2]"}),
      Contains("[5, 2]: expected each step to be later than the one before"));
  CHECK(error_of({discrete, schedule + ".difficulty=[8, 16]", schedule + ".max_step=[5]"}).empty());
  CHECK_THAT(error_of({"training.cuda_graphs=true"}),
             Contains("true, with curriculum_learning, whose sequences have many lengths"));
}

TEST_CASE("lengths that do not divide among the ranks are refused", "[spec][ramp]") {
  const std::vector<std::string> parallel{"tensor_parallel.size=2",
                                          "tensor_parallel.sequence_parallel=true",
                                          "train_micro_batch_size_per_gpu=1"};
  const auto with = [&](const std::string& change) {
    std::vector<std::string> all = parallel;
    all.push_back(change);
    return error_of(all, 2);
  };
  CHECK(error_of(parallel, 2).empty());
  CHECK_THAT(
      with("curriculum_learning.schedule_config.difficulty_step=7"),
      Contains("7 tokens in each of the 1 sequences of a micro-batch are not a multiple of 2, as "
               "tensor_parallel.sequence_parallel asks") &&
          Contains("the nearest lengths that do are 6 or 8"));
  CHECK_THAT(with("curriculum_learning.max_difficulty=127"),
             Contains("curriculum_learning.max_difficulty: 127 tokens"));
  CHECK(with("train_micro_batch_size_per_gpu=2").empty());
}

}  // namespace dstrain
