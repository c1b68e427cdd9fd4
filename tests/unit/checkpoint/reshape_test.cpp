// A checkpoint speaks of tensors, not of ranks: what any layout saved, any other loads.
#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;

TEST_CASE("a checkpoint comes back bit for bit on as many ranks as wrote it", "[checkpoint]") {
  const int ranks = GENERATE(1, 2, 4);
  const ScratchFolder folder;
  save_toy(folder.path() / "checkpoints", 400, {.dp = ranks}, 3);
  const auto latest = CheckpointStore(folder.path() / "checkpoints").latest();
  REQUIRE(latest == folder.path() / "checkpoints/step-00000400");
  CHECK(holds_toy(*latest, {.dp = ranks}, 3));

  ToyState nothing;
  CHECK(CheckpointStore::load(*latest, nothing.tensors()) == training_state(400));
}

TEST_CASE("what one layout saved another loads", "[checkpoint]") {
  const std::vector<Cut> cuts = {{.dp = 1},
                                 {.dp = 2},
                                 {.dp = 3},
                                 {.dp = 7},
                                 {.tp = 2},
                                 {.dp = 2, .tp = 2, .tp_dim = 1},
                                 {.dp = 2, .tp = 3},
                                 {.tp = 3, .tp_dim = 1},
                                 {.tp = 2, .tp_dim = 2}};
  for (const Cut& writers : cuts) {
    const ScratchFolder folder;
    save_toy(folder.path(), 1, writers, 5);
    for (const Cut& readers : cuts) {
      CAPTURE(writers.dp, writers.tp, writers.tp_dim, readers.dp, readers.tp, readers.tp_dim);
      CHECK(holds_toy(folder.path() / "step-00000001", readers, 5));
    }
  }
}

TEST_CASE("contents list every state of every tensor once", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {.dp = 2, .tp = 2}, 5);
  const auto contents = CheckpointStore::contents(folder.path() / "step-00000001");
  REQUIRE(contents.size() == 3 * toy_tensors().size());
  for (const ToyTensor& tensor : toy_tensors()) {
    for (const char* state : {"parameter", "exp_avg", "exp_avg_sq"}) {
      const CheckpointEntry entry{.state = state, .tensor = tensor.name, .shape = tensor.shape};
      CHECK(std::count(contents.begin(), contents.end(), entry) == 1);
    }
  }
}
