#include "engine/config/arch/tensor_list.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dstrain {
namespace {

class List {
 public:
  void add_norm(const std::string& name,
                NormKind kind,
                std::int64_t width,
                const TensorDecl& sharing) {
    TensorDecl weight = sharing;
    weight.name = name + ".weight";
    weight.shape = {width};
    weight.mean = 1.0F - weight_offset(kind);
    weight.deviation = 0.0F;
    weight.decays = false;
    tensors_.push_back(weight);
    if (kind == NormKind::kLayerNorm) {
      weight.name = name + ".bias";
      weight.mean = 0.0F;
      tensors_.push_back(weight);
    }
  }
  void add_matrix(const std::string& name, Shape shape, const TensorDecl& kind) {
    TensorDecl weight = kind;
    weight.name = name + ".weight";
    weight.shape = shape;
    weight.hidden_matrix = true;
    tensors_.push_back(weight);
  }
  /// Adds the bias of a matrix of that kind. That of Cut::kColumns is added to a sum over ranks, so
  /// that every rank sees its whole gradient.
  void add_bias(const std::string& name,
                std::int64_t outputs,
                const TensorDecl& kind,
                float deviation = 0.0F) {
    tensors_.push_back({.name = name + ".bias",
                        .shape = {outputs},
                        .deviation = deviation,
                        .decays = false,
                        .of_expert = kind.of_expert,
                        .cut = kind.cut == Cut::kColumns ? Cut::kWhole : kind.cut,
                        .heads = kind.heads,
                        .gradient_of_copy = kind.gradient_of_copy});
  }
  void add_linear(const std::string& name, Shape shape, bool bias, const TensorDecl& kind) {
    add_matrix(name, shape, kind);
    if (bias) add_bias(name, shape[0], kind);
  }
  /// A number for each head.
  void add_of_heads(std::string name, std::int64_t heads, float deviation) {
    tensors_.push_back({.name = std::move(name),
                        .shape = {heads},
                        .deviation = deviation,
                        .decays = false,
                        .cut = Cut::kRows,
                        .heads = heads});
  }
  void add_balancing_bias(const std::string& name, std::int64_t experts) {
    tensors_.push_back({.name = name + kBalancingBias, .shape = {experts}, .decays = false});
  }
  void add_table(std::string name, Shape shape, float deviation, Cut cut) {
    tensors_.push_back(
        {.name = std::move(name), .shape = shape, .deviation = deviation, .cut = cut});
  }
  /// Every rank holds it, and one of them computes with it.
  void add_score_head(std::string name, std::int64_t width, float deviation) {
    tensors_.push_back({.name = std::move(name),
                        .shape = {1, width},
                        .deviation = deviation,
                        .gradient_of_copy = GradientOfCopy::kOfMyShare});
  }
  void add_value_head(std::string name, std::int64_t width) {
    tensors_.push_back({.name = std::move(name),
                        .shape = {1, width},
                        .adapter = true,
                        .gradient_of_copy = GradientOfCopy::kOfMyShare});
  }
  [[nodiscard]] std::vector<TensorDecl> take() { return std::move(tensors_); }

 private:
  std::vector<TensorDecl> tensors_;
};

const TensorDecl kOfStream{.gradient_of_copy = GradientOfCopy::kOfMyTokens};

/// Each head is normalised by itself with the same weights, or all heads of a token at once.
void add_query_key_norms(List& list, const std::string& name, const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  const auto add = [&](const char* which, std::int64_t heads) {
    if (attention.query_key_norm == QueryKeyNorm::kPerHead) {
      list.add_norm(name + which, layer.norm.kind, attention.head_dim,
                    {.gradient_of_copy = GradientOfCopy::kOfMyShare});
    } else if (attention.query_key_norm == QueryKeyNorm::kFullWidth) {
      list.add_norm(name + which, layer.norm.kind, heads * attention.head_dim,
                    {.cut = Cut::kRows, .heads = heads});
    }
  };
  add("query_norm", attention.heads);
  add("key_norm", attention.key_value_heads);
}

/// The latents are every rank's, and the queries, keys and values of its heads come from them.
void add_latents(List& list, const std::string& name, std::int64_t width, const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  const LatentSpec& latent = *attention.latent;
  const TensorDecl of_heads{
      .deviation = layer.deviation, .cut = Cut::kRows, .heads = attention.heads};
  const TensorDecl of_latent{.deviation = layer.deviation,
                             .gradient_of_copy = GradientOfCopy::kOfMyShare};
  if (latent.query_rank > 0) {
    list.add_matrix(name + "query_down", {latent.query_rank, width}, of_latent);
    list.add_norm(name + "query_latent_norm", layer.norm.kind, latent.query_rank, of_latent);
    list.add_matrix(name + "query_up", {attention.query_width(), latent.query_rank}, of_heads);
  } else {
    list.add_matrix(name + "query", {attention.query_width(), width}, of_heads);
  }
  list.add_matrix(name + "latent_down", {latent.latent_rank + latent.rotated_dim, width},
                  of_latent);
  list.add_norm(name + "latent_norm", layer.norm.kind, latent.latent_rank, of_latent);
  list.add_matrix(name + "latent_up",
                  {attention.heads * (latent.plain_dim + latent.value_dim), latent.latent_rank},
                  of_heads);
}

void add_attention(List& list,
                   const std::string& name,
                   std::int64_t width,
                   const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  const auto add_heads = [&](const char* what, std::int64_t heads) {
    list.add_linear(name + what, {heads * attention.head_dim, width}, attention.qkv_bias,
                    {.deviation = layer.deviation, .cut = Cut::kRows, .heads = heads});
  };
  if (attention.latent) {
    add_latents(list, name, width, layer);
  } else {
    add_heads("query", attention.heads);
    add_heads("key", attention.key_value_heads);
    add_heads("value", attention.key_value_heads);
    add_query_key_norms(list, name, layer);
  }
  if (attention.sinks) list.add_of_heads(name + "sinks", attention.heads, layer.deviation);
  list.add_linear(name + "output", {width, attention.result_width()}, attention.output_bias,
                  {.deviation = layer.residual_deviation, .cut = Cut::kColumns});
}

/// The first matrices of all experts, gate beside up, lie together, as do the second ones, and the
/// biases of each.
void add_experts(List& list,
                 const std::string& name,
                 std::int64_t width,
                 const LayerSpec& layer,
                 const ExpertsSpec& experts) {
  const FeedForwardSpec& mlp = layer.feed_forward;
  const TensorDecl router{.deviation = layer.deviation,
                          .gradient_of_copy = GradientOfCopy::kOfMyShare};
  list.add_matrix(name + "router", {experts.count, width}, router);
  // Unlike others, it starts drawn in transformers' class.
  if (experts.router_bias) list.add_bias(name + "router", experts.count, router, layer.deviation);
  if (experts.balancing_bias) list.add_balancing_bias(name, experts.count);
  const TensorDecl inner{.deviation = layer.deviation, .of_expert = true, .cut = Cut::kRows};
  const TensorDecl outer{
      .deviation = layer.residual_deviation, .of_expert = true, .cut = Cut::kColumns};
  const auto for_each_first = [&](const auto& add) {
    for (std::int64_t expert = 0; expert < experts.count; ++expert) {
      const std::string of_expert = name + "experts." + std::to_string(expert) + ".";
      if (mlp.gated) add(of_expert + "gate");
      add(of_expert + "up");
    }
  };
  const auto for_each_second = [&](const auto& add) {
    for (std::int64_t expert = 0; expert < experts.count; ++expert) {
      add(name + "experts." + std::to_string(expert) + ".down");
    }
  };
  for_each_first([&](const std::string& what) {
    list.add_matrix(what, {mlp.width, width}, inner);
  });
  for_each_second([&](const std::string& what) {
    list.add_matrix(what, {width, mlp.width}, outer);
  });
  if (mlp.bias) {
    for_each_first([&](const std::string& what) { list.add_bias(what, mlp.width, inner); });
    for_each_second([&](const std::string& what) { list.add_bias(what, width, outer); });
  }
}

void add_feed_forward(List& list,
                      const std::string& name,
                      std::int64_t width,
                      const LayerSpec& layer) {
  const FeedForwardSpec& mlp = layer.feed_forward;
  if (mlp.experts) {
    add_experts(list, name, width, layer, *mlp.experts);
    if (mlp.experts->shared_width > 0) {
      LayerSpec shared = layer;
      shared.feed_forward.width = mlp.experts->shared_width;
      shared.feed_forward.experts.reset();
      add_feed_forward(list, name + "shared.", width, shared);
    }
    return;
  }
  const TensorDecl inner{.deviation = layer.deviation, .cut = Cut::kRows};
  if (mlp.gated) {
    list.add_linear(name + "gate", {mlp.width, width}, mlp.bias, inner);
  }
  list.add_linear(name + "up", {mlp.width, width}, mlp.bias, inner);
  list.add_linear(name + "down", {width, mlp.width}, mlp.bias,
                  {.deviation = layer.residual_deviation, .cut = Cut::kColumns});
}

}  // namespace

std::vector<TensorDecl> block_tensors(const Architecture& architecture,
                                      const LayerSpec& layer,
                                      const std::string& name) {
  const std::int64_t width = architecture.hidden_size;
  List list;
  const auto add_norms = [&](const char* branch) {
    list.add_norm(name + branch + "_norm", layer.norm.kind, width, kOfStream);
    if (layer.norm_placement == NormPlacement::kAroundBranch) {
      list.add_norm(name + branch + "_result_norm", layer.norm.kind, width, kOfStream);
    }
  };
  add_norms("attention");
  add_attention(list, name + "attention.", width, layer);
  add_norms("mlp");
  add_feed_forward(list, name + "mlp.", width, layer);
  return list.take();
}

std::vector<TensorDecl> embedding_tensors(const Architecture& architecture) {
  const std::int64_t width = architecture.hidden_size;
  List list;
  list.add_table("embedding.token.weight", {architecture.vocab_size, width}, architecture.deviation,
                 Cut::kVocabulary);
  if (architecture.learned_positions > 0) {
    list.add_table("embedding.position.weight", {architecture.learned_positions, width},
                   architecture.deviation, Cut::kWhole);
  }
  if (architecture.embedding_norm) {
    list.add_norm(kEmbeddingNorm, architecture.final_norm.kind, width, kOfStream);
  }
  return list.take();
}

std::vector<TensorDecl> head_tensors(const Architecture& architecture) {
  List list;
  list.add_norm("final_norm", architecture.final_norm.kind, architecture.hidden_size, kOfStream);
  if (architecture.scores) {
    list.add_score_head("head.weight", architecture.hidden_size, architecture.deviation);
  } else if (!architecture.tied_embeddings) {
    list.add_table("head.weight", {architecture.vocab_size, architecture.hidden_size},
                   architecture.deviation, Cut::kVocabulary);
  }
  if (architecture.values) list.add_value_head(kValueHead, architecture.hidden_size);
  return list.take();
}

std::vector<TensorDecl> architecture_tensors(const Architecture& architecture) {
  std::vector<TensorDecl> all = embedding_tensors(architecture);
  const auto append = [&](std::vector<TensorDecl> tensors) {
    std::move(tensors.begin(), tensors.end(), std::back_inserter(all));
  };
  for (std::size_t layer = 0; layer < architecture.layers.size(); ++layer) {
    append(block_tensors(architecture, architecture.layers[layer],
                         "blocks." + std::to_string(layer) + "."));
  }
  append(head_tensors(architecture));
  return all;
}

const TensorDecl* find_tensor(const std::vector<TensorDecl>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorDecl& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

std::int64_t vocabulary_rows(std::int64_t vocab_size, std::int64_t ranks) {
  constexpr std::int64_t kMultiple = 8;
  constexpr std::int64_t kMany = 1024;
  const std::int64_t rows = (vocab_size + ranks - 1) / ranks;
  return rows < kMany ? rows : (rows + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace dstrain
