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
    weight.decays = false;
    tensors_.push_back(weight);
    if (kind == NormKind::kLayerNorm) {
      weight.name = name + ".bias";
      weight.mean = 0.0F;
      tensors_.push_back(weight);
    }
  }
  void add_linear(const std::string& name, Shape shape, bool bias, const TensorDecl& kind) {
    TensorDecl weight = kind;
    weight.name = name + ".weight";
    weight.shape = shape;
    weight.hidden_matrix = true;
    tensors_.push_back(weight);
    if (bias) {
      // The bias is added to a sum over ranks, whose whole gradient every rank sees.
      tensors_.push_back({.name = name + ".bias",
                          .shape = {shape[0]},
                          .decays = false,
                          .cut = kind.cut == Cut::kColumns ? Cut::kWhole : kind.cut,
                          .heads = kind.heads});
    }
  }
  void add_table(std::string name, Shape shape, float deviation, Cut cut) {
    tensors_.push_back(
        {.name = std::move(name), .shape = shape, .deviation = deviation, .cut = cut});
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
                    {.gradient_of_copy = GradientOfCopy::kOfMyHeads});
    } else if (attention.query_key_norm == QueryKeyNorm::kFullWidth) {
      list.add_norm(name + which, layer.norm.kind, heads * attention.head_dim,
                    {.cut = Cut::kRows, .heads = heads});
    }
  };
  add("query_norm", attention.heads);
  add("key_norm", attention.key_value_heads);
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
  add_heads("query", attention.heads);
  add_heads("key", attention.key_value_heads);
  add_heads("value", attention.key_value_heads);
  add_query_key_norms(list, name, layer);
  list.add_linear(name + "output", {width, attention.query_width()}, attention.output_bias,
                  {.deviation = layer.residual_deviation, .cut = Cut::kColumns});
}

void add_feed_forward(List& list,
                      const std::string& name,
                      std::int64_t width,
                      const LayerSpec& layer) {
  const FeedForwardSpec& mlp = layer.feed_forward;
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
  if (!architecture.tied_embeddings) {
    list.add_table("head.weight", {architecture.vocab_size, architecture.hidden_size},
                   architecture.deviation, Cut::kVocabulary);
  }
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
