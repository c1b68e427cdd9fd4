#include "engine/model/mlp.h"

#include <string>
#include <vector>

namespace dstrain {

Mlp Mlp::declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint) {
  const FeedForwardSpec& spec = shape.layer.feed_forward;
  Mlp mlp;
  mlp.activation_ = spec.activation;
  mlp.limit_ = spec.limit;
  mlp.gated_ = spec.gated;
  std::vector<std::string> up;
  if (spec.gated) {
    up.push_back(name + ".gate");
  }
  up.push_back(name + ".up");
  mlp.up_ = Linear::declare(shape, up, blueprint);
  mlp.down_ = Linear::declare(shape, {name + ".down"}, blueprint);

  mlp.in_tiles_ = shape.has_mlp_tiles();
  mlp.tile_ = shape.mlp_tile();
  const std::string within_block = name.substr(name.rfind('.') + 1);
  const Shape pre{mlp.tile_, mlp.up_.outputs()};
  const Shape hidden{mlp.tile_, spec.width / shape.tensor.ranks};
  const auto activation = [&](const char* what, const Shape& of, Origin origin) {
    return mlp.in_tiles_ ? blueprint.add_buffer({within_block + "/" + what, of, shape.compute,
                                                 Lifetime::kScratch, LayerKind::kMlp})
                         : shape.add_activation(blueprint, name, what, of, shape.compute, origin,
                                                LayerKind::kMlp);
  };
  mlp.pre_ = activation("pre", pre, Origin::kProduct);
  // The activation function of pre, element by element.
  mlp.hidden_ = activation("hidden", hidden, Origin::kRowwise);
  const auto d_scratch = [&](const char* what, const Shape& of) {
    return shape.add_backward_buffer(
        blueprint, {within_block + "/" + what, of, shape.compute, Lifetime::kScratch});
  };
  if (spec.gated) {
    mlp.d_hidden_ = d_scratch("d_hidden", hidden);
  }
  mlp.d_pre_ = d_scratch("d_pre", pre);
  return mlp;
}

void Mlp::forward(const LayerContext& context, int slot, ConstTensor x_NC, Tensor y_NC) const {
  for_each_tile(x_NC.dim(0), [&](const Range& tokens) {
    expand_tile(context, slot, x_NC.rows(tokens.begin, tokens.end));
    down_.forward(context, slot, context.buffer(hidden_, slot).rows(0, tokens.size()),
                  y_NC.rows(tokens.begin, tokens.end));
  });
}

void Mlp::expand(const LayerContext& context, int slot, ConstTensor x_NC) const {
  if (in_tiles_) return;
  expand_tile(context, slot, x_NC);
  down_.renew(context, slot, context.buffer(hidden_, slot).rows(0, x_NC.dim(0)));
}

void Mlp::expand_tile(const LayerContext& context, int slot, ConstTensor x_NC) const {
  const std::int64_t tokens = x_NC.dim(0);
  const Tensor pre = context.buffer(pre_, slot).rows(0, tokens);
  if (gated_) {
    up_.forward(context, slot, x_NC, pre);
    activate_tile(context, slot, tokens);
  } else {
    up_.forward_activated(context, slot, activation_, x_NC, pre,
                          context.buffer(hidden_, slot).rows(0, tokens));
  }
}

void Mlp::activate(const LayerContext& context, int slot) const {
  if (!in_tiles_) {
    activate_tile(context, slot, tile_);
  }
}

void Mlp::activate_tile(const LayerContext& context, int slot, std::int64_t tokens) const {
  const Tensor pre = context.buffer(pre_, slot).rows(0, tokens);
  const Tensor hidden = context.buffer(hidden_, slot).rows(0, tokens);
  if (gated_) {
    context.ops.gated_activation_forward({activation_, limit_}, pre, hidden, context.compute);
  } else {
    context.ops.activation_forward(activation_, pre, hidden, context.compute);
  }
}

void Mlp::backward(const LayerContext& context,
                   int slot,
                   ConstTensor dy_NC,
                   ConstTensor x_NC,
                   Tensor dx_NC,
                   const GradTarget& gradients) const {
  GradTarget of_tile = gradients;
  for_each_tile(x_NC.dim(0), [&](const Range& tokens) {
    const ConstTensor dy = dy_NC.rows(tokens.begin, tokens.end);
    const ConstTensor x = x_NC.rows(tokens.begin, tokens.end);
    const Tensor pre = context.buffer(pre_, slot).rows(0, tokens.size());
    const Tensor hidden = context.buffer(hidden_, slot).rows(0, tokens.size());
    const Tensor d_pre = context.buffer(d_pre_).rows(0, tokens.size());
    if (in_tiles_) {
      expand_tile(context, slot, x);
    }
    if (gated_) {
      const Tensor d_hidden = context.buffer(d_hidden_).rows(0, tokens.size());
      down_.backward(context, slot, dy, hidden, d_hidden, of_tile);
      context.ops.gated_activation_backward({activation_, limit_}, pre, d_hidden, d_pre,
                                            context.compute);
    } else {
      down_.backward_activated(context, slot, activation_, dy, hidden, pre, d_pre, of_tile);
    }
    up_.backward(context, slot, d_pre, x, dx_NC.rows(tokens.begin, tokens.end), of_tile);
    of_tile.write = Write::kAdd;
  });
}

}  // namespace dstrain
