#include "engine/checkpoint/piece_overlap.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Indices = std::array<std::int64_t, Shape::kMaxRank>;

/// The first dim such that the boxes agree on all later ones: everything from it on is one run.
int first_dim_of_a_run(const BoxedRange& a, const BoxedRange& b) {
  int dim = a.start.rank() - 1;
  while (dim > 0 && a.start[dim] == b.start[dim] && a.extent[dim] == b.extent[dim]) {
    --dim;
  }
  return std::max(dim, 0);
}

/// Where an element of the tensor lies in the row-major order of a box.
std::int64_t flat_in_box(const BoxedRange& box, const Indices& at) {
  std::int64_t flat = 0;
  for (int dim = 0; dim < box.start.rank(); ++dim) {
    flat = flat * box.extent[dim] + (at[static_cast<std::size_t>(dim)] - box.start[dim]);
  }
  return flat;
}

}  // namespace

void for_each_overlap(const BoxedRange& stored,
                      const BoxedRange& wanted,
                      const std::function<void(const OverlapRun&)>& visit) {
  const int rank = stored.start.rank();
  check(stored.extent.rank() == rank && wanted.start.rank() == rank && wanted.extent.rank() == rank,
        "boxes of {} and {} dims are not of one tensor", rank, wanted.start.rank());
  Indices low{};  // the intersection of the boxes
  Indices high{};
  for (int dim = 0; dim < rank; ++dim) {
    const auto i = static_cast<std::size_t>(dim);
    low[i] = std::max(stored.start[dim], wanted.start[dim]);
    high[i] =
        std::min(stored.start[dim] + stored.extent[dim], wanted.start[dim] + wanted.extent[dim]);
    if (low[i] >= high[i]) {
      return;
    }
  }
  const int run_dim = first_dim_of_a_run(stored, wanted);
  std::int64_t run = 1;
  for (int dim = run_dim; dim < rank; ++dim) {
    run *= high[static_cast<std::size_t>(dim)] - low[static_cast<std::size_t>(dim)];
  }

  Indices at = low;
  while (true) {
    const std::int64_t in_stored = flat_in_box(stored, at);
    const std::int64_t in_wanted = flat_in_box(wanted, at);
    const std::int64_t begin =
        std::max({std::int64_t{0}, stored.flat.begin - in_stored, wanted.flat.begin - in_wanted});
    const std::int64_t end =
        std::min({run, stored.flat.end - in_stored, wanted.flat.end - in_wanted});
    if (begin < end) {
      visit({.stored = in_stored + begin - stored.flat.begin,
             .wanted = in_wanted + begin - wanted.flat.begin,
             .count = end - begin});
    }
    // The next row: count up over the dims before the run.
    int dim = run_dim - 1;
    for (; dim >= 0; --dim) {
      const auto i = static_cast<std::size_t>(dim);
      if (++at[i] < high[i]) {
        break;
      }
      at[i] = low[i];
    }
    if (dim < 0) {
      return;
    }
  }
}

}  // namespace dstrain
