// Passes over sequences that are not a step's: what their targets lose by the model as it is.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/train/engine.h"

namespace dstrain {

/// Fills the T inputs and targets of a row.
using ReadRow = std::function<void(
    std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets)>;
struct RowNumbers {
  std::span<const float> nats_T;    ///< the losses of its targets, 0 where there is none
  std::span<const float> values_T;  ///< empty where there is no head of values
};
using TakeRow = std::function<void(std::int64_t row, const RowNumbers& found)>;

/// Called after each micro-batch. Returns whether to go on, on all ranks alike.
using GoesOn = std::function<bool()>;

/// Collective. Computes rows 0 to `rows` - 1, shared out among the ranks, and hands each to `take`
/// on one rank. The engine has its objective back afterwards. Returns false where `goes_on`, which
/// may be empty, ended it before the last row.
bool pass_over_rows(Engine& engine,
                    std::int64_t rows,
                    const ReadRow& read,
                    const TakeRow& take,
                    const GoesOn& goes_on = {});

/// Collective. Adds up numbers over all ranks.
void add_over_ranks(std::vector<double>& numbers, Communicator& world);

}  // namespace dstrain
