#include "engine/checkpoint/checkpoint_store.h"

#include <set>

#include <catch2/catch.hpp>

#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

using Names = std::set<std::string>;

/// A rank's share with one thing about one tensor changed.
template <typename Change>
ToyState changed_share(Change&& change) {
  ToyState share = toy_share(0, {});
  change(share.tensors().back());
  return share;
}

/// The error that each of `num_ranks` ranks gets when they save; "" where nothing was thrown.
template <typename MakeShare>
std::vector<std::string> failures_of_saving(int num_ranks,
                                            const fs::path& folder,
                                            MakeShare&& make_share,
                                            DiskProbe probe_of_last = {}) {
  return test::thread_world(num_ranks, [&](Rendezvous& rendezvous) {
    std::vector<int> members(static_cast<std::size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank) {
      members[static_cast<std::size_t>(rank)] = rank;
    }
    const auto world = rendezvous.make_group("world", members);
    ToyState share = make_share(world->rank());
    share.fill(1);
    CheckpointStore store(folder, world->rank() == num_ranks - 1 ? probe_of_last : DiskProbe{});
    try {
      store.save(training_state(9), share.tensors(), 2, *world);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  });
}

}  // namespace

TEST_CASE("a folder where nothing was saved has no latest checkpoint", "[checkpoint]") {
  const ScratchFolder folder;
  CHECK(CheckpointStore(folder.path()).latest() == std::nullopt);
  CHECK(CheckpointStore(folder.path() / "not/there").latest() == std::nullopt);
}

TEST_CASE("only the newest checkpoints are kept", "[checkpoint]") {
  const ScratchFolder folder;
  for (int step = 1; step <= 5; ++step) {
    save_toy(folder.path(), step, {.dp = 2}, step, 2);
    CHECK(CheckpointStore(folder.path()).latest() ==
          folder.path() / ("step-0000000" + std::to_string(step)));
  }
  CHECK(names_in(folder.path()) == Names{"latest", "step-00000004", "step-00000005"});
  save_toy(folder.path(), 6, {.dp = 2}, 6, 1);
  CHECK(names_in(folder.path()) == Names{"latest", "step-00000006"});
  CHECK(read_file(folder.path() / "latest") == "step-00000006\n");
}

TEST_CASE("the checkpoint just written is kept even where older steps have higher numbers",
          "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 30, {}, 1);
  save_toy(folder.path(), 20, {}, 2, 1);
  CHECK(names_in(folder.path()) == Names{"latest", "step-00000020"});
  CHECK(holds_toy(folder.path() / "step-00000020", {}, 2));
}

TEST_CASE("a checkpoint of the same step is replaced", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 8, {.dp = 3}, 1);
  save_toy(folder.path(), 8, {.dp = 2}, 2);
  CHECK(names_in(folder.path()) == Names{"latest", "step-00000008"});
  CHECK(names_in(folder.path() / "step-00000008") ==
        Names{"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"});
  CHECK(holds_toy(folder.path() / "step-00000008", {.dp = 4}, 2));
}

TEST_CASE("remains of dead saves are removed by the next one, foreign files are not",
          "[checkpoint]") {
  const ScratchFolder folder;
  fs::create_directories(folder.path() / ".step-00000003.tmp/deep");
  fs::create_directories(folder.path() / ".step-00000002.old");
  fs::create_directories(folder.path() / "notes");
  overwrite_file(folder.path() / ".step-00000003.tmp/deep/rank-00000.safetensors", "half");
  overwrite_file(folder.path() / "step-by-step.txt", "mine");
  save_toy(folder.path(), 4, {}, 1);
  CHECK(names_in(folder.path()) == Names{"latest", "notes", "step-00000004", "step-by-step.txt"});
}

TEST_CASE("latest falls back to the newest whole checkpoint, and obeys who edits it",
          "[checkpoint]") {
  const ScratchFolder folder;
  const CheckpointStore store(folder.path());
  for (const int step : {1, 2, 3}) {
    save_toy(folder.path(), step, {}, step);
  }
  const auto latest_is = [&](int step) {
    return store.latest() == folder.path() / ("step-0000000" + std::to_string(step));
  };
  SECTION("missing") {
    fs::remove(folder.path() / "latest");
    CHECK(latest_is(3));
  }
  SECTION("dangling") {
    fs::remove_all(folder.path() / "step-00000003");
    CHECK(latest_is(2));
  }
  SECTION("naming one without a manifest, with one without a rank file beside it") {
    fs::remove(folder.path() / "step-00000003/manifest.json");
    fs::remove(folder.path() / "step-00000002/rank-00000.safetensors");
    CHECK(latest_is(1));
  }
  SECTION("naming one that was cut short") {
    const auto file = folder.path() / "step-00000003/rank-00000.safetensors";
    fs::resize_file(file, fs::file_size(file) - 1);
    CHECK(latest_is(2));
  }
  SECTION("nonsense, or a path that leads elsewhere") {
    for (const char* text : {"", "\xff\xfe", "../step-00000001", "/", "step-x"}) {
      overwrite_file(folder.path() / "latest", text);
      CHECK(latest_is(3));
    }
  }
  SECTION("edited by hand") {
    overwrite_file(folder.path() / "latest", "step-00000001");
    CHECK(latest_is(1));
  }
  SECTION("nothing whole is an error that says why, never a fresh start") {
    for (const char* name : {"step-00000001", "step-00000002", "step-00000003"}) {
      fs::remove(folder.path() / name / "manifest.json");
    }
    CHECK_THROWS_WITH(store.latest(), Contains("no usable checkpoint") &&
                                          Contains("step-00000002") && Contains("manifest.json"));
    fs::remove(folder.path() / "latest");
    CHECK_THROWS_AS(store.latest(), CheckpointError);
  }
}

TEST_CASE("what does not fit is refused before anything is written", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 1, {.dp = 2}, 1);
  const fs::path checkpoint = folder.path() / "step-00000001";
  const auto refused = [&](ToyState share, const std::vector<std::string>& words) {
    std::string message = "accepted";
    try {
      CheckpointStore::load(checkpoint, share.tensors());
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    for (const std::string& word : words) {
      CHECK_THAT(message, Contains(word));
    }
    CHECK(share.is_untouched());
  };
  refused(
      changed_share([](CheckpointTensor& tensor) { tensor.piece.tensor = "blocks.0.convolutoin"; }),
      {checkpoint.string(), "blocks.0.convolutoin", "nearest", "\"blocks.0.convolution\""});
  refused(changed_share([](CheckpointTensor& tensor) {
            tensor.piece.shape = {3, 2, 4};
          }),
          {checkpoint.string(), "blocks.0.convolution", "[3, 4, 2]", "[3, 2, 4]"});
  refused(changed_share([](CheckpointTensor& tensor) { tensor.state = "momentum"; }),
          {checkpoint.string(), "momentum", "exp_avg"});
}

TEST_CASE("a path that is no checkpoint is refused with the usable ones beside it",
          "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 7, {}, 1);
  CHECK_THROWS_WITH(CheckpointStore::load(folder.path() / "step-00000008", {}),
                    Contains("step-00000008") && Contains("no manifest.json") &&
                        Contains("beside it: step-00000007"));
}

TEST_CASE("a rank that cannot write fails the save on every rank, in its own words",
          "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path checkpoints = folder.path() / "checkpoints";
  const auto share = [](int rank) { return toy_share(rank, {.dp = 3}); };
  const auto failures = failures_of_saving(3, checkpoints, share, [](const DiskChange& change) {
    if (change.kind == DiskChange::Kind::kSyncFile) {
      throw StorageError("cannot sync " + change.path.string() + ": the cable is out");
    }
  });
  for (const std::string& failure : failures) {
    CHECK_THAT(failure, Contains("rank 2: ") && Contains("rank-00002.safetensors") &&
                            Contains("the cable is out"));
  }
  CHECK(names_in(checkpoints).empty());
  CHECK(CheckpointStore(checkpoints).latest() == std::nullopt);
}

TEST_CASE("pieces that do not cover every element once are never committed", "[checkpoint]") {
  const ScratchFolder folder;
  const auto saved_with = [&](auto&& make_share) {
    const auto failures = failures_of_saving(2, folder.path() / "c", make_share);
    CHECK(failures[0] == failures[1]);
    CHECK(names_in(folder.path() / "c").empty());
    return failures[0];
  };
  CHECK_THAT(saved_with([](int) { return toy_share(0, {.dp = 2}); }), Contains("stored twice"));
  CHECK_THAT(saved_with([](int rank) { return toy_share(rank, {.dp = 3}); }),
             Contains("in no file"));
  CHECK_THAT(saved_with([](int rank) {
               ToyState share = toy_share(rank, {.dp = 2});
               share.tensors()[0].piece.shape = Shape{5, 7 + rank};
               return share;
             }),
             Contains("[5, 7]") && Contains("[5, 8]"));
}

TEST_CASE("a replacement that fails leaves the checkpoint it was to replace", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 9, {}, 5);
  const auto failures = failures_of_saving(
      1, folder.path(), [](int) { return toy_share(0, {}); },
      [](const DiskChange& change) {
        if (change.kind == DiskChange::Kind::kRename &&
            change.target.filename() == "step-00000009") {
          throw StorageError("no");
        }
      });
  CHECK(failures[0] == "no");
  CHECK(names_in(folder.path()) == Names{"latest", "step-00000009"});
  CHECK(holds_toy(folder.path() / "step-00000009", {}, 5));
}

TEST_CASE("failing to remove an outdated checkpoint does not fail the save", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path(), 8, {}, 1);
  const auto failures = failures_of_saving(
      1, folder.path(), [](int) { return toy_share(0, {}); },
      [](const DiskChange& change) {
        if (change.kind == DiskChange::Kind::kRemove) {
          throw StorageError("no");
        }
      });
  CHECK(failures[0].empty());
  CHECK(holds_toy(CheckpointStore(folder.path()).latest().value(), {}, 1));
}
