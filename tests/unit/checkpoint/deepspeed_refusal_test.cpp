#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/deepspeed/deepspeed_checkpoint.h"
#include "tests/unit/checkpoint/hand_made_zip.h"
#include "tests/unit/checkpoint/scratch_folder.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;

namespace {

namespace fs = std::filesystem;

const fs::path kGolden = DSTRAIN_UNPACKED "/deepspeed-checkpoints";

/// A copy of a golden checkpoint, to be damaged.
class SpoiltFolder {
 public:
  explicit SpoiltFolder(const std::string& name) {
    fs::copy(kGolden / name, path(), fs::copy_options::recursive);
  }
  [[nodiscard]] fs::path path() const { return folder_.path() / "checkpoint"; }
  [[nodiscard]] fs::path file(const std::string& name) const {
    return path() / "global_step2" / name;
  }
  void refuses(const std::string& reason) const {
    CHECK_THROWS_WITH(DeepSpeedCheckpoint(path()), Contains(reason));
    CHECK_THROWS_AS(DeepSpeedCheckpoint(path()), CheckpointError);
  }
  /// Replaces bytes in a file by as many others, at the first place after a text, as if they had
  /// been written so.
  void edit(const std::string& name,
            const std::string& after,
            const std::string& from,
            const std::string& to) const {
    std::string content = read_file(file(name));
    const std::size_t at = content.find(from, content.find(after));
    REQUIRE(from.size() == to.size());
    REQUIRE(at != std::string::npos);
    overwrite_file(file(name), with_true_checksums(content.replace(at, from.size(), to)));
  }

 private:
  ScratchFolder folder_;
};

const std::string kOptim0 = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";
const std::string kOptim1 = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";

}  // namespace

TEST_CASE("folders that are not DeepSpeed checkpoints are refused", "[checkpoint][deepspeed]") {
  const ScratchFolder folder;
  const auto refuses = [&](const fs::path& path, const std::string& reason) {
    CHECK_THROWS_WITH(DeepSpeedCheckpoint(path), Contains(reason));
  };
  refuses(folder.path() / "absent", "is not a folder");
  refuses(folder.path(), "expected a file \"latest\"");
  overwrite_file(folder.path() / "latest", "global_step7");
  refuses(folder.path(), "global_step7, which holds no");
  for (const std::string tag : {"", "..", "a/b", "/etc"}) {
    overwrite_file(folder.path() / "latest", tag);
    refuses(folder.path(), "does not hold the name of a folder beside it");
  }
  overwrite_file(folder.path() / "latest", std::string(300, 'x'));
  refuses(folder.path(), "does not hold the name");
}

TEST_CASE("a newline after the tag in `latest` does no harm", "[checkpoint][deepspeed]") {
  const SpoiltFolder checkpoint("zero1-bf16");
  overwrite_file(checkpoint.path() / "latest", "global_step2\n");
  CHECK(DeepSpeedCheckpoint(checkpoint.path()).progress().global_steps == 2);
}

TEST_CASE("a rank's file that is missing or of another run is refused by name",
          "[checkpoint][deepspeed]") {
  const SpoiltFolder checkpoint("zero1-bf16");
  SECTION("the first rank's") {
    fs::remove(checkpoint.file(kOptim0));
    checkpoint.refuses("no optim_states file of data-parallel rank 0, model-parallel rank 0");
  }
  SECTION("the last rank's: only the other files can tell") {
    fs::remove(checkpoint.file(kOptim1));
    checkpoint.refuses("split over 2 ranks, but there are 1 optim_states files");
  }
  SECTION("of the same rank twice") {
    fs::copy(checkpoint.file(kOptim0), checkpoint.file(kOptim0.substr(5)));
    checkpoint.refuses("are of the same rank");
  }
  SECTION("a wild rank costs nothing") {
    fs::copy(checkpoint.file(kOptim0),
             checkpoint.file("zero_pp_rank_2000000000_mp_rank_00_optim_states.pt"));
    checkpoint.refuses("no optim_states file of data-parallel rank 2");
    fs::copy(checkpoint.file(kOptim0),
             checkpoint.file("zero_pp_rank_99999999999_mp_rank_00_optim_states.pt"));
    checkpoint.refuses("99999999999 is not a rank");
  }
  SECTION("the model's") {
    fs::remove(checkpoint.file("mp_rank_00_model_states.pt"));
    checkpoint.refuses("holds no *_model_states.pt");
  }
  SECTION("models of two stages") {
    fs::copy(checkpoint.file("mp_rank_00_model_states.pt"),
             checkpoint.file("zero_pp_rank_0_mp_rank_00_model_states.pt"));
    checkpoint.refuses("has both mp_rank_00_model_states.pt");
  }
  SECTION("a model-parallel rank's optimizer") {
    fs::copy(checkpoint.file("mp_rank_00_model_states.pt"),
             checkpoint.file("mp_rank_01_model_states.pt"));
    checkpoint.refuses("2 × 1 model_states files");
  }
  SECTION("experts") {
    overwrite_file(checkpoint.file("layer_1_expert_0_mp_rank_00_model_states.pt"), "");
    checkpoint.refuses("belongs to a mixture of experts");
  }
  SECTION("of an optimizer with other sizes") {
    fs::copy(kGolden / "zero2-fp16/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt",
             checkpoint.file(kOptim1), fs::copy_options::overwrite_existing);
    checkpoint.refuses("is of another ZeRO stage than");
  }
  SECTION("cut short") {
    const std::string content = read_file(checkpoint.file(kOptim1));
    overwrite_file(checkpoint.file(kOptim1), content.substr(0, content.size() / 2));
    checkpoint.refuses("was cut short");
  }
}

TEST_CASE("counts that do not agree are refused", "[checkpoint][deepspeed]") {
  const SpoiltFolder checkpoint("zero1-bf16");
  const std::string model = "mp_rank_00_model_states.pt";
  SECTION("a parameter that is larger than its group") {
    checkpoint.edit(model, "torch\nSize", "K\x0dK\x07\x86", "K\x7fK\x07\x86");  // wte: [13, 7]
    checkpoint.refuses("the parameters of group 0 need 889 elements, the optim_states have 161");
  }
  SECTION("parameters that leave more than padding") {
    checkpoint.edit(model, "torch\nSize", "K\x0dK\x07\x86", "K\x01K\x07\x86");
    checkpoint.refuses("the parameters of group 0 need 77 elements, the optim_states have 161");
  }
  SECTION("the step of one group, and then of its rank") {
    // Storages 0 and 3 hold the groups' steps, 2.0F: they become 3.0F.
    const std::string two("\0\0\0\x40", 4);
    const std::string three("\0\0\x40\x40", 4);
    checkpoint.edit(kOptim1, "/data/0", two, three);
    checkpoint.refuses("group 1 is of step 2, those before it of 3");
    checkpoint.edit(kOptim1, "/data/3", two, three);
    checkpoint.refuses("is of another step than");
  }
  SECTION("no step at all") {
    checkpoint.edit(model, "global_steps", "global_steps", "global_stepz");
    checkpoint.refuses("mp_rank_00_model_states.pt: no \"global_steps\" in a dict with");
  }
}

TEST_CASE("ranks that stopped at different steps are refused", "[checkpoint][deepspeed]") {
  const SpoiltFolder checkpoint("zero3-fp16");
  const std::string name = "zero_pp_rank_2_mp_rank_00_model_states.pt";
  checkpoint.edit(name, "global_steps", "K\x02", "K\x03");
  checkpoint.refuses("was overwritten and not finished");
}

TEST_CASE("a universal checkpoint that lacks a parameter is refused", "[checkpoint][deepspeed]") {
  const ScratchFolder folder;
  const fs::path copy = folder.path() / "universal";
  fs::copy(kGolden / "zero2-fp32/global_step2_universal", copy, fs::copy_options::recursive);
  SECTION("its folder") {
    fs::remove_all(copy / "zero/fc.bias");
    CHECK_THROWS_WITH(DeepSpeedCheckpoint(copy), Contains("lacks \"fc.bias\""));
  }
  SECTION("its weights") {
    fs::remove(copy / "zero/fc.bias/fp32.pt");
    CHECK_THROWS_WITH(DeepSpeedCheckpoint(copy), Contains("fc.bias/fp32.pt"));
  }
  SECTION("elements of a moment") {
    fs::copy(copy / "zero/wte.weight/exp_avg.pt", copy / "zero/fc.bias/exp_avg.pt",
             fs::copy_options::overwrite_existing);
    CHECK_THROWS_WITH(DeepSpeedCheckpoint(copy), Contains("has 91 elements, expected 5"));
  }
  SECTION("all of them") {
    fs::remove_all(copy / "zero");
    fs::create_directory(copy / "zero");
    CHECK_THROWS_WITH(DeepSpeedCheckpoint(copy), Contains("zero holds no parameters"));
  }
}
