// Parameters that are gathered in a block code: what every rank computes with, bit by bit.
#include <cmath>

#include <catch2/catch.hpp>

#include "kernels/math/block_code.h"
#include "tests/harness/thread_world.h"
#include "tests/ops/lab.h"
#include "tests/unit/parallel/updating_rank.h"

namespace dstrain::test {
namespace {

constexpr int kRanks = 4;
constexpr int kUnits = 3;

Blueprint units_to_walk() {
  Blueprint blueprint;
  for (const std::int64_t numel : {5000L, 37L, 9001L}) {
    blueprint.begin_unit(fmt::format("unit of {}", numel));
    blueprint.add_param({.name = fmt::format("w{}", numel), .shape = {numel}});
  }
  return blueprint;
}

float start_of(int unit, std::int64_t i) {
  return std::cos(static_cast<float>(7 * i + 3 * unit)) * (i % 100 == 0 ? 30.0F : 1.0F);
}

struct Seen {
  std::vector<std::vector<std::byte>> forward{kUnits};
  std::vector<std::vector<std::byte>> backward{kUnits};
  std::vector<std::vector<float>> masters{kUnits};  ///< this rank's slices
  std::vector<std::vector<float>> masters_after{kUnits};
};

Seen walk(Rendezvous& rendezvous,
          const std::function<Backend()>& make,
          DType compute,
          bool second_copy) {
  const int rank = rendezvous.world_rank();
  const Mesh mesh =
      second_copy ? Mesh({.data_across = 2, .data_inside = 2}) : Mesh({.data_inside = kRanks});
  const auto group = [&](const char* name, AxisSet axes) {
    const std::vector<int> members = mesh.members(axes, rank);
    return rendezvous.make_group(fmt::format("{} {}", name, members.front()), members);
  };
  const auto data = group("data", kGradientAxes);
  const auto few = group("few", Axis::kDataInside);
  Placement placement = zero_placement({.states = true, .gradients = true, .parameters = true});
  if (second_copy) placement.secondary.cut = Axis::kDataInside;
  Backend backend = make();
  UpdatingRank updating({.blueprint = units_to_walk(),
                         .mesh = mesh,
                         .rank = rank,
                         .placement = placement,
                         .compute = compute,
                         .parameter_code = BlockCode{.bits = 8},
                         .neighbour_group = second_copy ? few.get() : nullptr},
                        backend, {{kGradientAxes, data.get(), nullptr}}, start_of);
  CHECK(updating.arena().bytes() == updating.memory().bytes());
  Seen seen;
  const auto masters = [&](std::vector<std::vector<float>>& into) {
    for (int unit = 0; unit < kUnits; ++unit) {
      const std::vector<std::byte> bytes = updating.bytes_of(RegionKind::kMaster, unit);
      const auto* const values = reinterpret_cast<const float*>(bytes.data());
      into[static_cast<std::size_t>(unit)] = {values, values + bytes.size() / sizeof(float)};
    }
  };
  masters(seen.masters);
  updating.walk([&](const UnitVisit& visit, const std::vector<std::byte>& bytes) {
    auto& pass = visit.pass == Pass::kForward ? seen.forward : seen.backward;
    pass[static_cast<std::size_t>(visit.unit)] = bytes;
  });
  masters(seen.masters_after);
  return seen;
}

/// The slices in the compute dtype, coded and decoded one by one.
std::vector<std::byte> expected(const BackendUnderTest& backend,
                                const std::vector<Seen>& ranks,
                                std::size_t unit,
                                DType compute) {
  Lab lab(backend.make(1));
  std::vector<std::byte> all;
  for (const Seen& rank : ranks) {
    const std::vector<float>& master = rank.masters[unit];
    const auto n = static_cast<std::int64_t>(master.size());
    const BlockCode code{.bits = 8};
    const Tensor working = lab.put(Values(master.begin(), master.end()), compute, {n});
    const Tensor wire = lab.unset(DType::kU8, {code.bytes(n)});
    lab.ops().encode_blocks(code, {}, working, wire, lab.stream());
    lab.ops().decode_blocks(code, {}, wire, working, Write::kOverwrite, lab.stream());
    const std::size_t begin = all.size();
    all.resize(begin + static_cast<std::size_t>(working.bytes()));
    lab.device().copy_to_host(working, all.data() + begin, lab.stream());
    lab.stream().synchronize();
  }
  return all;
}

}  // namespace

TEST_CASE("all ranks compute with the same decoded parameters, their own slices too",
          "[zero][block_code]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType compute : kComputeDtypes) {
      for (const bool second_copy : {false, true}) {
        CAPTURE(backend.name, name_of(compute), second_copy);
        const std::vector<Seen> ranks = thread_world(kRanks, [&](Rendezvous& rendezvous) {
          return walk(
              rendezvous, [&] { return backend.make(1); }, compute, second_copy);
        });
        for (std::size_t unit = 0; unit < kUnits; ++unit) {
          const std::vector<std::byte> all = expected(backend, ranks, unit, compute);
          for (const Seen& rank : ranks) {
            CHECK(rank.forward[unit] == all);
            CHECK(rank.backward[unit] == all);
            CHECK(rank.masters_after[unit] == rank.masters[unit]);
          }
        }
      }
    }
  }
}

}  // namespace dstrain::test
