// ExpertExchange: how rows get to the ranks that hold their experts, and back, where ranks hold
// other experts of a layer. Rank r of R has experts [r · E/R, (r + 1) · E/R).
//
//   rows of this rank's tokens, expert by expert          M = N · k, or fewer where rows are
//                                                         dropped; in tiles, N of a tile
//     all-to-all of the numbers, then of the rows  →      as received: rank by rank, of each expert
//     by expert put in order                                 →      as computed: expert by expert,
//     of each rank by rank
//   … the experts compute …
//     put back, and all-to-all the other way
//
// Tokens of an expert are in the order in which one rank with all ranks' samples would have them.
// Buffers have place for the rows that a rank gets where all tokens of all ranks choose its
// experts, as far as these take them. In tiles they are not kept for backward.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/plan/traffic_plan.h"
#include "engine/runtime/expert_tally.h"

namespace dstrain {

class ExpertExchange {
 public:
  static ExpertExchange declare(const LayerShape& shape,
                                const std::string& name,
                                Blueprint& blueprint);

  /// The most rows that a rank of `shape` computes at a time.
  static std::int64_t most_rows(const LayerShape& shape);

  /// Tells the ranks how many rows come to each of their experts, rows_E (i32) being this rank's.
  /// Fills in all of `routed`; waits for the numbers.
  void meet(const LayerContext& context, ConstTensor rows_E, RoutedRows& routed) const;
  /// Brings the order of rows to the device, for what follows.
  void set_order(const LayerContext& context, int slot, const RoutedRows& routed) const;

  /// Where rows [M, C] of this rank's tokens are to lie before they are given, and where they come
  /// back to.
  [[nodiscard]] Tensor rows_here(const LayerContext& context, std::int64_t rows) const {
    return context.buffer(here_).rows(0, rows);
  }
  // The calls that follow give and give back. Where there is a LayerContext::expert_passing they
  // return while rows are still on their way: what they read must not change, and what they write
  // must not be read, before arrive().
  /// Makes computing wait for all that was sent.
  void arrive(const LayerContext& context) const;
  /// Sends them, and returns the rows as received, valid until the next exchange.
  [[nodiscard]] Tensor give(const LayerContext& context, const RoutedRows& routed) const;
  /// Sends rows as computed back, to rows_here().
  void give_back(const LayerContext& context,
                 int slot,
                 const RoutedRows& routed,
                 ConstTensor computed) const;
  /// Sends numbers [M] (f32) of this rank's rows; [rows received].
  void give_numbers(const LayerContext& context,
                    const RoutedRows& routed,
                    ConstTensor here,
                    Tensor received) const;
  void give_numbers_back(const LayerContext& context,
                         const RoutedRows& routed,
                         ConstTensor received,
                         Tensor here) const;

  /// i32: RoutedRows::order and experts, of the rows of a slot.
  [[nodiscard]] Tensor order(const LayerContext& context, int slot, std::int64_t rows) const {
    return context.buffer(order_, slot).flat(0, rows);
  }
  [[nodiscard]] Tensor experts(const LayerContext& context, int slot, std::int64_t rows) const {
    return context.buffer(experts_, slot).flat(0, rows).view({rows, 1});
  }

  /// Adds what it exchanges for so many tokens. beside_shared: the shared feed-forward computes
  /// while rows are on their way. computes_again: rows were not kept, and backward sends them
  /// again; otherwise only a forward that is computed again does.
  void add_traffic(std::int64_t tokens,
                   bool beside_shared,
                   bool computes_again,
                   ExpertTraffic& traffic) const;

 private:
  void pass(const LayerContext& context,
            ConstTensor in,
            std::span<const std::int64_t> sent,
            Tensor out,
            std::span<const std::int64_t> received) const;

  bool overlap_ = false;  // as planned
  std::int64_t ranks_ = 1;
  std::int64_t own_ = 1;     // E / R
  std::int64_t tokens_ = 0;  // that are exchanged at a time
  std::int64_t rows_ = 0;    // the most of these: N · k, or fewer with a capacity
  std::int64_t width_ = 0;   // C
  DType compute_ = DType::kF32;
  BufferRef counts_;    // scratch i32 [E]: numbers of rows as received
  BufferRef order_;     // i32
  BufferRef places_;    // i32
  BufferRef experts_;   // i32
  BufferRef here_;      // scratch [rows_, C]
  BufferRef received_;  // scratch [most_rows, C]
};

}  // namespace dstrain
