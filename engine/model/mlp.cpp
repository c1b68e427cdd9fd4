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

  const Shape pre{shape.tokens(), mlp.up_.outputs()};
  const Shape hidden{shape.tokens(), spec.width / shape.tensor.ranks};
  mlp.pre_ = shape.add_activation(blueprint, name, "pre", pre, shape.compute, Origin::kProduct,
                                  LayerKind::kMlp);
  // The activation function of pre, element by element.
  mlp.hidden_ = shape.add_activation(blueprint, name, "hidden", hidden, shape.compute,
                                     Origin::kRowwise, LayerKind::kMlp);
  const auto d_scratch = [&](const char* what, const Shape& of) {
    const std::string within_block = name.substr(name.rfind('.') + 1);
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
  expand(context, slot, x_NC);
  down_.forward(context, context.activation(hidden_, slot), y_NC);
}

void Mlp::expand(const LayerContext& context, int slot, ConstTensor x_NC) const {
  const Tensor pre = context.activation(pre_, slot);
  if (gated_) {
    up_.forward(context, x_NC, pre);
    activate(context, slot);
  } else {
    up_.forward_activated(context, activation_, x_NC, pre, context.activation(hidden_, slot));
  }
}

void Mlp::activate(const LayerContext& context, int slot) const {
  const Tensor pre = context.activation(pre_, slot);
  const Tensor hidden = context.activation(hidden_, slot);
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
  const Tensor pre = context.buffer(pre_, slot);
  const Tensor hidden = context.buffer(hidden_, slot);
  const Tensor d_pre = context.buffer(d_pre_);
  if (gated_) {
    const Tensor d_hidden = context.buffer(d_hidden_);
    down_.backward(context, dy_NC, hidden, d_hidden, gradients);
    context.ops.gated_activation_backward({activation_, limit_}, pre, d_hidden, d_pre,
                                          context.compute);
  } else {
    down_.backward_activated(context, activation_, dy_NC, hidden, pre, d_pre, gradients);
  }
  up_.backward(context, d_pre, x_NC, dx_NC, gradients);
}

}  // namespace dstrain
