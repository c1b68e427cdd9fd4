// Experts: a feed-forward that is a mixture of experts, of which every token goes through the few
// that a router chooses for it (expert_router.h).
//
//   rows = x of each token for each of its experts, expert by expert: M = N · k, or fewer where
//          experts drop what is beyond their capacity
//   y = Σ over a token's rows of weight · down_e(act(gate_e row) · up_e row)
//
// Tensor-parallel ranks have a part of each expert's width, and all choose alike; or each routes
// the tokens of its own stream (ExpertShape::own_tokens), and has experts, router and shared
// feed-forward whole. Ranks may hold other experts (expert_exchange.h): rows go to them, and their
// results come back. A shared feed-forward, where there is one, adds its own result to every
// token's: it is small beside the experts, so that whole copies of it cost less than gathering
// tokens for it alone would. It computes while rows are on their way to other ranks, and experts'
// gradients while they come back.
//
// The host waits in forward for the numbers of rows. Buffers have place for N · k rows, or for
// those that experts take (expert_capacity.h), or for ExpertExchange::most_rows() where ranks hold
// others. Backward gathers rows again rather than keep them, unless they came from other ranks.
//
// In tiles over tokens (LayerShape::mlp_tile_tokens) the router sees all tokens at once, and keeps
// what it chose. Rows are ordered, sent and computed tile by tile, and again in backward, so that
// buffers have place for those of one tile, whatever the router does. All ranks have as many tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/expert_exchange.h"
#include "engine/model/expert_router.h"
#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/model/mlp.h"
#include "kernels/routing.h"

namespace dstrain {

class Experts {
 public:
  static Experts declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint);

  /// The passes of Mlp, which have the same meanings; expand() only after a forward.
  void forward(const LayerContext& context, int slot, ConstTensor x_NC, Tensor y_NC) const;
  void expand(const LayerContext& context, int slot, ConstTensor x_NC) const;
  void activate(const LayerContext& context, int slot) const;
  /// Also adds to the context's tally and to losses().
  void backward(const LayerContext& context,
                int slot,
                ConstTensor dy_NC,
                ConstTensor x_NC,
                Tensor dx_NC,
                const BlockGradients& gradients) const;
  /// The unit of the experts' matrices, where it is not the block's: ranks hold other experts.
  [[nodiscard]] std::optional<int> unit() const {
    return unit_ < 0 ? std::nullopt : std::optional(unit_);
  }
  /// The rows and numbers that it exchanges with those ranks, and the counts that it sums over
  /// those that share its sequences, as they are planned.
  [[nodiscard]] ExpertTraffic traffic() const;
  /// f64 [2], over the step's micro-batches: the auxiliary losses of their sequences, and the
  /// squares of logsumexp of their tokens. Empty where neither joins the loss.
  [[nodiscard]] Tensor losses(const LayerContext& context) const { return router_.losses(context); }

 private:
  /// The parameters of all experts of one kind, which lie together: [E, outputs, inputs], and their
  /// biases [E, outputs].
  struct Matrices {
    ParamRef weight{};
    ParamRef bias{};  ///< index < 0: there are none
    int count = 0;
    Shape shape{};
    [[nodiscard]] ConstTensor weights(const ExecContext& context) const;
    [[nodiscard]] ConstTensor biases(const ExecContext& context) const;
    void backward(const ExecContext& context,
                  ConstTensor dy,
                  ConstTensor x,
                  ExpertRows rows,
                  const GradTarget& gradients) const;
  };

  /// Tokens whose rows are computed together: all of a micro-batch, or a tile of them.
  struct Tile {
    int slot;
    int index;
    Range tokens;
    template <typename View>
    [[nodiscard]] View of(const View& all) const {
      return all.rows(tokens.begin, tokens.end);
    }
  };

  /// Rows of tokens, and the slot of each row that this rank computes: of its own tokens, or of
  /// rows as received, which are tokens with one expert each.
  struct Source {
    ConstTensor tokens;
    ConstTensor slots;
    std::int64_t per_token;
  };
  /// The weight and the expert of each slot of a Source, and where its weight's gradient goes.
  /// Experts are counted among this rank's.
  struct Choices {
    ConstTensor weights;
    ConstTensor chosen;
    Tensor d_weights;
  };

  void declare_matrices(const LayerShape& shape,
                        const std::string& name,
                        std::int64_t first,
                        Blueprint& blueprint);
  /// Calls compute(Tile) for each.
  template <typename Compute>
  void for_each_tile(int slot, std::int64_t tokens, Compute&& compute) const {
    int index = 0;
    for (std::int64_t begin = 0; begin < tokens; begin += tile_) {
      compute(Tile{slot, index++, {begin, std::min(begin + tile_, tokens)}});
    }
  }
  /// Orders rows by expert, after the router's forward.
  void order(const LayerContext& context, const Tile& tile) const;
  void meet(const LayerContext& context, const Tile& tile) const;
  void tell(const LayerContext& context, const Tile& tile) const;
  /// Sends rows of tokens where there are other ranks to send them to; arrive() before they are
  /// read. `all_NC`: of the micro-batch.
  [[nodiscard]] Source source(const LayerContext& context,
                              const Tile& tile,
                              ConstTensor all_NC) const;
  [[nodiscard]] Choices choices_of(const LayerContext& context, const Tile& tile) const;
  void give_back_weights(const LayerContext& context, const Tile& tile) const;
  void take_weights(const LayerContext& context, const Tile& tile) const;
  void arrive(const LayerContext& context) const;
  /// Computes hidden from rows of x.
  void expand_rows(const LayerContext& context, const Tile& tile, const Source& from) const;
  void activate_rows(const LayerContext& context, int slot, std::int64_t rows) const;
  /// Computes the gradients of choices' weights and of the experts' matrices from rows of dy.
  /// Returns the gradient of x by rows of this rank's tokens, which places() are in.
  [[nodiscard]] Tensor backward_rows(const LayerContext& context,
                                     const Tile& tile,
                                     const Source& dy,
                                     const Choices& choices,
                                     ConstTensor x_NC,
                                     const GradTarget& gradients) const;
  [[nodiscard]] RoutedRows& rows_of(const LayerContext& context, const Tile& tile) const;
  [[nodiscard]] Tensor places(const LayerContext& context, const Tile& tile) const;
  /// The down biases, for the rank that adds them.
  [[nodiscard]] ConstTensor added_biases(const ExecContext& context) const;

  ExpertsSpec spec_;
  std::int64_t tokens_ = 0;  // of a micro-batch
  std::int64_t tile_ = 0;    // of these, that are computed at a time
  bool in_tiles_ = false;    // else one tile has all of them
  std::int64_t block_ = 0;
  std::int64_t batch_ = 1;
  std::int64_t capacity_ = 0;  // expert_capacity()
  bool adds_bias_ = true;
  ActivationKind activation_{};
  float limit_ = 0.0F;  // of gates
  bool gated_ = true;
  std::int64_t own_ = 1;  // experts of this rank
  int unit_ = -1;         // of their matrices, where it is not the block's
  ExpertRouter router_;
  std::optional<ExpertExchange> exchange_;
  Matrices up_;  // gate‖up of each expert where gated
  Matrices down_;
  std::optional<Mlp> shared_;
  // For backward, or in tiles scratch of both passes, N being the tokens of a tile:
  BufferRef num_rows_;  // i32 [E]
  BufferRef slots_;     // i32 [N · k]
  BufferRef places_;    // i32 [N, k]
  BufferRef pre_;       // [N · k, F] or [N · k, 2F]
  BufferRef hidden_;    // [N · k, F]
  BufferRef inputs_;    // [most rows, C]; of ranks with other experts, as the next ones
  BufferRef rows_;      // scratch [N · k, C]
  BufferRef counts_;    // scratch i32 [1, E]: the tokens of a tile that chose each expert
  // Scratch of backward:
  BufferRef d_hidden_;
  BufferRef d_pre_;
  BufferRef weights_here_;        // f32 [N · k], by row
  BufferRef weights_received_;    // f32 [most rows]
  BufferRef d_weights_received_;  // likewise
  // [all tokens, C]: the gradient of x by way of the shared feed-forward, and in tiles also of the
  // experts.
  BufferRef d_beside_;
};

}  // namespace dstrain
