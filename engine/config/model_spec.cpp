#include "engine/config/model_spec.h"

namespace dstrain {
namespace {

/// Weights of one block's matrices, biases and norms excluded.
std::int64_t block_matmul_parameters(const ModelSpec& m) {
  const std::int64_t query = m.num_heads * m.head_dim;
  const std::int64_t key_value = m.num_key_value_heads * m.head_dim;
  const std::int64_t attention = m.hidden_size * (2 * query + 2 * key_value);
  const std::int64_t mlp_matrices = m.gated_mlp ? 3 : 2;
  return attention + mlp_matrices * m.hidden_size * m.intermediate_size;
}

std::int64_t block_vector_parameters(const ModelSpec& m) {
  const std::int64_t norm_vectors = m.norm == NormKind::kLayerNorm ? 2 : 1;  // weight and bias
  std::int64_t sum = 2 * norm_vectors * m.hidden_size;
  if (m.qkv_bias) sum += (m.num_heads + 2 * m.num_key_value_heads) * m.head_dim;
  if (m.attention_output_bias) sum += m.hidden_size;
  if (m.mlp_bias) sum += (m.gated_mlp ? 2 : 1) * m.intermediate_size + m.hidden_size;
  return sum;
}

}  // namespace

std::int64_t ModelSpec::num_parameters() const {
  const std::int64_t table = vocab_size * hidden_size;
  const std::int64_t positions =
      position == PositionKind::kLearned ? max_positions * hidden_size : 0;
  const std::int64_t final_norm = (norm == NormKind::kLayerNorm ? 2 : 1) * hidden_size;
  return table + positions +
         num_layers * (block_matmul_parameters(*this) + block_vector_parameters(*this)) +
         final_norm + (tied_embeddings ? 0 : table);
}

// Kaplan et al. 2020, §2.1: two FLOPs per weight forward, four backward; attention's two products
// of T × D per head likewise, and a causal mask leaves half of each.
double ModelSpec::flops_per_token(std::int64_t sequence_length) const {
  const std::int64_t matmul_parameters =
      num_layers * block_matmul_parameters(*this) + vocab_size * hidden_size;
  const double attention = 12.0 * static_cast<double>(num_layers * num_heads * head_dim) *
                           static_cast<double>(sequence_length) / 2.0;
  return 6.0 * static_cast<double>(matmul_parameters) + attention;
}

}  // namespace dstrain
