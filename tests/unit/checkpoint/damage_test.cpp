// Bytes that changed on the disk after a save: every one of them must be noticed, and nothing may
// have been written to the tensors by then.
#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;

namespace {

/// What loading everything says; "" if it loads.
std::string complaint(const std::filesystem::path& checkpoint, ToyState& share) {
  try {
    CheckpointStore::load(checkpoint, share.tensors());
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("one flipped bit anywhere in a checkpoint is noticed and its file named",
          "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {.dp = 2}, 1);
  const auto checkpoint = folder.path() / "step-00000001";
  ToyState share = toy_share(0, {});
  for (const char* name : {"rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"}) {
    const std::size_t size = std::filesystem::file_size(checkpoint / name);
    for (std::size_t at = 0; at < size; ++at) {
      const int bit = static_cast<int>(at % 8);
      flip_bit(checkpoint / name, at, bit);
      const std::string message = complaint(checkpoint, share);
      flip_bit(checkpoint / name, at, bit);
      if (message.find(name) == std::string::npos || !share.is_untouched()) {
        FAIL("byte " << at << " of " << name << ": " << message);
      }
    }
  }
  CHECK(complaint(checkpoint, share).empty());
  CHECK(share.equals(1));
}

TEST_CASE("a flipped bit in a tensor names the tensor", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {}, 1);
  const auto file = folder.path() / "step-00000001/rank-00000.safetensors";
  flip_bit(file, std::filesystem::file_size(file) - 1, 0);  // of the tensor written last
  ToyState share = toy_share(0, {});
  CHECK_THAT(complaint(folder.path() / "step-00000001", share),
             Contains(file.string()) && Contains("exp_avg_sq/blocks.0.convolution[0:24]") &&
                 Contains("is damaged"));
}

TEST_CASE("a file cut short, grown or missing is refused with its size", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {.dp = 2}, 1);
  const auto checkpoint = folder.path() / "step-00000001";
  const auto file = checkpoint / "rank-00001.safetensors";
  const std::string whole = read_file(file);
  ToyState share = toy_share(0, {});
  for (std::size_t size = 0; size <= whole.size() + 1; size += 97) {
    overwrite_file(file, whole.substr(0, size));
    CHECK_THAT(
        complaint(checkpoint, share),
        Contains(file.string()) && Contains("has " + std::to_string(size) + " bytes, expected " +
                                            std::to_string(whole.size())));
  }
  overwrite_file(file, whole + "x");
  CHECK_THAT(complaint(checkpoint, share), Contains("expected"));
  std::filesystem::remove(file);
  CHECK_THAT(complaint(checkpoint, share), Contains(file.string()) && Contains("No such file"));
  CHECK(share.is_untouched());
}

TEST_CASE("damage in pieces that are not asked for does not stand in the way", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {.dp = 2}, 1);
  const auto file = folder.path() / "step-00000001/rank-00001.safetensors";
  flip_bit(file, std::filesystem::file_size(file) - 1, 0);
  ToyState first = toy_share(0, {.dp = 2});
  CHECK(complaint(folder.path() / "step-00000001", first).empty());
  CHECK(first.equals(1));
  ToyState second = toy_share(1, {.dp = 2});
  CHECK_THAT(complaint(folder.path() / "step-00000001", second), Contains("is damaged"));
}
