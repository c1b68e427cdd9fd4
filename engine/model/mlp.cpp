#include "engine/model/mlp.h"

#include <string>
#include <vector>

#include "engine/config/config_error.h"

namespace dstrain {

Mlp Mlp::declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint) {
  const FeedForwardSpec& spec = shape.layer.feed_forward;
  if (spec.experts) {
    throw ConfigError({.where = {},
                       .path = "model.model_type",
                       .message = "models with a mixture of experts are read and converted, but "
                                  "neither trained nor run in this version",
                       .mend = {}});
  }
  Mlp mlp;
  mlp.activation_ = spec.activation;
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
  if (spec.gated) {
    mlp.d_hidden_ = shape.add_backward_buffer(
        blueprint, {"d_hidden", hidden, shape.compute, Lifetime::kScratch});
  }
  mlp.d_pre_ =
      shape.add_backward_buffer(blueprint, {"d_pre", pre, shape.compute, Lifetime::kScratch});
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
    context.ops.gated_activation_forward(activation_, pre, hidden, context.compute);
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
    context.ops.gated_activation_backward(activation_, pre, d_hidden, d_pre, context.compute);
  } else {
    down_.backward_activated(context, activation_, dy_NC, hidden, pre, d_pre, gradients);
  }
  up_.backward(context, d_pre, x_NC, dx_NC, gradients);
}

}  // namespace dstrain
