#include "engine/plan/shard_map.h"

#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

Blueprint seven_parameters() {
  Blueprint blueprint;
  blueprint.begin_unit("small");
  blueprint.add_param({.name = "a", .shape = {2, 2}});
  blueprint.add_param({.name = "b", .shape = {3}});
  blueprint.begin_unit("large");
  blueprint.add_param({.name = "c", .shape = {5, 7}});
  blueprint.add_param({.name = "d", .shape = {1}});
  blueprint.add_param({.name = "e", .shape = {11, 3}});
  return blueprint;
}

TEST_CASE("slices of any number of ranks tile every unit", "[plan]") {
  const Blueprint blueprint = seven_parameters();
  for (const int ranks : {1, 2, 3, 4, 7, 16}) {
    const ShardMap shards(blueprint, Mesh({.data_inside = ranks}));
    for (int unit = 0; unit < shards.num_units(); ++unit) {
      std::int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range slice = shards.slice(unit, rank);
        CHECK(slice.begin == end);
        CHECK(slice.size() == shards.slice_numel(unit));
        CHECK(slice.size() % ShardMap::kAlignment == 0);
        end = slice.end;
      }
      CHECK(end == shards.padded_numel(unit));
      CHECK(end >= shards.numel(unit));
      CHECK(end < shards.numel(unit) + ranks * ShardMap::kAlignment + ranks);
    }
  }
}

TEST_CASE("the pieces of all slices cover every element of every tensor once", "[plan]") {
  const Blueprint blueprint = seven_parameters();
  for (const int ranks : {1, 2, 3, 4}) {
    const ShardMap shards(blueprint, Mesh({.data_inside = ranks}));
    std::map<std::string, std::vector<int>> covered;
    for (const UnitDecl& unit : blueprint.units()) {
      for (const ParamDecl& param : unit.params) {
        covered[param.name].resize(static_cast<std::size_t>(param.shape.numel()));
      }
    }
    for (int unit = 0; unit < shards.num_units(); ++unit) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const PlacedPiece& placed : shards.pieces(unit, shards.slice(unit, rank))) {
          const Piece& piece = placed.piece;
          CHECK(piece.box_extent == piece.shape);
          CHECK(placed.offset >= shards.slice(unit, rank).begin);
          for (std::int64_t i = piece.flat.begin; i < piece.flat.end; ++i) {
            covered[piece.tensor].at(static_cast<std::size_t>(i)) += 1;
          }
        }
      }
    }
    for (const auto& [name, counts] : covered) {
      INFO(name);
      CHECK(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }));
    }
  }
}

TEST_CASE("neighbouring parameters lie back to back, so q‖k‖v is one tensor", "[plan]") {
  const Blueprint blueprint = seven_parameters();
  const UnitDecl& unit = blueprint.units()[1];
  CHECK(unit.offset_of(0) == 0);
  CHECK(unit.offset_of(1) == 35);
  CHECK(unit.offset_of(2) == 36);
  CHECK(unit.numel() == 69);
  CHECK(blueprint.num_parameters() == 76);
}

TEST_CASE("neighbours have all slices among them, and ranks of the same slice share its saving",
          "[plan]") {
  const Blueprint blueprint = seven_parameters();
  for (const int inside : {1, 2, 3}) {
    for (const int across : {1, 2, 5}) {
      const Mesh mesh({.data_across = across, .data_inside = inside});
      for (int unit = 0; unit < 2; ++unit) {
        std::vector<int> saved;
        for (int rank = 0; rank < mesh.world_size(); ++rank) {
          const ShardMap shards(blueprint, mesh, rank, kNeighbourAxes);
          CHECK(shards.num_slices(unit) == inside);
          CHECK(shards.num_copies(unit) == across);
          CHECK(shards.has_copies() == (across > 1));
          CHECK(shards.own_slice(unit) == shards.slice(unit, rank % inside));
          saved.resize(static_cast<std::size_t>(shards.padded_numel(unit)));
          const Range part = shards.saved_slice(unit);
          for (std::int64_t i = part.begin; i < part.end; ++i) {
            ++saved.at(static_cast<std::size_t>(i));
          }
        }
        CHECK(std::all_of(saved.begin(), saved.end(), [](int times) { return times == 1; }));
      }
    }
  }
}

}  // namespace
}  // namespace dstrain
