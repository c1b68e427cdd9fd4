// Pieces are stored in the dtype that the run keeps them in, and read in the one that the next run
// keeps them in.
#include <bit>
#include <cmath>
#include <limits>

#include "engine/checkpoint/safetensors.h"
#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;

namespace {

constexpr std::int64_t kElements = 9;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Piece piece_of(const std::string& tensor, Range flat) {
  return {.tensor = tensor,
          .shape = {kElements},
          .box_start = {0},
          .box_extent = {kElements},
          .flat = flat};
}

template <typename T>
CheckpointTensor view(const std::string& state, const Piece& piece, std::vector<T>& values) {
  return {state, piece, {values.data(), DTypeOf<T>::value, Shape{piece.flat.size()}}};
}

/// Two ranks, of which the first has 4 of the elements: an odd number for the second.
template <typename T>
void save(const std::filesystem::path& folder, const std::vector<T>& values) {
  test::thread_world(2, [&](Rendezvous& rendezvous) {
    const auto world = rendezvous.make_group("world", std::vector<int>{0, 1});
    const Range mine = world->rank() == 0 ? Range{0, 4} : Range{4, kElements};
    std::vector<T> slice(values.begin() + mine.begin, values.begin() + mine.end);
    std::vector<float> other(slice.size(), 0.5F);
    // Narrow before wide, as a run may name them.
    const std::vector<CheckpointTensor> tensors = {
        view("exp_avg", piece_of("weight", mine), slice),
        view("parameter", piece_of("weight", mine), other)};
    CheckpointStore(folder).save(training_state(1), tensors, 1, *world);
    return true;
  });
}

template <typename T>
std::vector<T> load(const std::filesystem::path& folder, Range flat) {
  std::vector<T> values(static_cast<std::size_t>(flat.size()));
  std::vector<float> other(values.size());
  const std::vector<CheckpointTensor> tensors = {
      view("exp_avg", piece_of("weight", flat), values),
      view("parameter", piece_of("weight", flat), other)};
  CheckpointStore::load(folder / "step-00000001", tensors);
  CHECK(other == std::vector<float>(values.size(), 0.5F));
  return values;
}

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> all;
  for (const float value : values) {
    all.push_back(std::bit_cast<std::uint32_t>(value));
  }
  return all;
}

std::vector<std::uint32_t> bits(const std::vector<BF16>& values) {
  std::vector<std::uint32_t> all;
  for (const BF16 value : values) {
    all.push_back(value.bits);
  }
  return all;
}

}  // namespace

TEST_CASE("bf16 is stored as bf16 and comes back as bf16, or exactly as f32", "[checkpoint]") {
  const ScratchFolder folder;
  const std::vector<BF16> stored = {{0x3f80}, {0xbf80}, {0x0000}, {0x8000}, {0x7f80},
                                    {0x0001}, {0x7f7f}, {0x4049}, {0xc2f7}};
  save(folder.path(), stored);
  CHECK(bits(load<BF16>(folder.path(), {0, kElements})) == bits(stored));
  const std::vector<std::uint32_t> widened = {0x3f800000, 0xbf800000, 0x00000000,
                                              0x80000000, 0x7f800000, 0x00010000,
                                              0x7f7f0000, 0x40490000, 0xc2f70000};
  CHECK(bits(load<float>(folder.path(), {0, kElements})) == widened);
  CHECK(bits(load<float>(folder.path(), {3, 6})) ==
        std::vector<std::uint32_t>(widened.begin() + 3, widened.begin() + 6));

  const SafetensorsFile file(folder.path() / "step-00000001/rank-00001.safetensors");
  CHECK(file.tensors().at("exp_avg/weight[4:9]").dtype == "BF16");
  CHECK(file.tensors().at("exp_avg/weight[4:9]").begin_byte == 5 * 4);  // after the f32 ones
  CHECK(file.tensors().at("parameter/weight[4:9]").dtype == "F32");
}

TEST_CASE("f32 comes back as the nearest bf16, ties to even", "[checkpoint]") {
  const ScratchFolder folder;
  const std::vector<float> stored = {1.0F,
                                     1.0F + 0x1p-8F,             // a tie: down to 1
                                     1.0F + 0x1.8p-7F,           // a tie: up to 1 + 2^-6
                                     1.0F + 0x1p-8F + 0x1p-20F,  // above it: up to 1 + 2^-7
                                     -1.0F - 0x1.8p-7F,
                                     kInfinity,
                                     std::numeric_limits<float>::max(),  // rounds to infinity
                                     -0.0F,
                                     3.14159274F};
  save(folder.path(), stored);
  CHECK(bits(load<float>(folder.path(), {0, kElements})) == bits(stored));
  const std::vector<std::uint32_t> rounded = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf82,
                                              0x7f80, 0x7f80, 0x8000, 0x4049};
  CHECK(bits(load<BF16>(folder.path(), {0, kElements})) == rounded);
  CHECK(bits(load<BF16>(folder.path(), {2, 7})) ==
        std::vector<std::uint32_t>(rounded.begin() + 2, rounded.begin() + 7));
}

TEST_CASE("a dtype that checkpoints do not have is refused before anything is written",
          "[checkpoint]") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH(save(folder.path(), std::vector<double>(kElements, 1.0)),
                    Catch::Matchers::Contains("f64 is not stored in checkpoints"));
  CHECK(CheckpointStore(folder.path()).latest() == std::nullopt);
}
