// The tensors of a model as a list: names, shapes, how they are shared out among tensor-parallel
// ranks, and what they start as. The layers declare their parameters from it, and a file that
// claims to hold a model's weights must hold these.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/arch/architecture.h"
#include "kernels/core/shape.h"

namespace dstrain {

/// How the name of a router's balancing bias ends. The bias is not trained but moved by the
/// experts' load, and always f32.
inline constexpr const char* kBalancingBias = "balancing_bias";
inline bool is_balancing_bias(std::string_view name) {
  return name.ends_with(kBalancingBias);
}

/// How the ranks of a tensor-parallel group share a tensor.
enum class Cut : std::uint8_t {
  kWhole,      ///< each rank holds all of it
  kRows,       ///< each holds equally many rows of it (elements, if it has one dim)
  kColumns,    ///< of a matrix [outputs, inputs] each holds equally many columns
  kVocabulary  ///< rows, of which the last ranks may have fewer: vocabulary_rows()
};

/// The part that each rank computes of the gradient of a tensor that all ranks hold whole.
enum class GradientOfCopy : std::uint8_t {
  kAll,         ///< every rank computes all of it
  kOfMyTokens,  ///< the part of the tokens of its residual stream, under sequence parallelism
  /// The part that comes through its shares of other tensors: its heads, or its columns of experts.
  kOfMyShare
};

struct TensorDecl {
  std::string name{};  ///< global and topology-free: "blocks.3.attention.query.weight"
  Shape shape{};       ///< of a matrix [outputs, inputs]
  /// Initial values are normally distributed around it, or all equal to it where the deviation is
  /// 0.
  float mean = 0.0F;
  float deviation = 0.0F;
  bool decays = true;          ///< weight decay applies: matrices yes, norms and biases no
  bool hidden_matrix = false;  ///< a matrix inside a block: what Muon orthogonalises
  /// It stands beside the model's own, which may be frozen: of a low-rank adapter (adapters.h), or
  /// the head of values. Random ones start uniform, not normal.
  bool adapter = false;
  bool of_expert = false;  ///< of one expert: only the tokens that chose it go through it
  Cut cut = Cut::kWhole;
  /// The number of heads into which the rows of a Cut::kRows divide; no head is cut. Where there
  /// are fewer heads than ranks, neighbours hold the same one. 0: any number of rows.
  std::int64_t heads = 0;
  GradientOfCopy gradient_of_copy = GradientOfCopy::kAll;  ///< of Cut::kWhole

  friend bool operator==(const TensorDecl&, const TensorDecl&) = default;
};

/// The tensors of one block; `name` is put in front of theirs ("blocks.3.").
std::vector<TensorDecl> block_tensors(const Architecture& architecture,
                                      const LayerSpec& layer,
                                      const std::string& name);
/// The tensors before the blocks, and those after them. Of the former the first is the table of
/// tokens, and the names of its norm begin with kEmbeddingNorm.
inline constexpr const char* kEmbeddingNorm = "embedding.norm";
std::vector<TensorDecl> embedding_tensors(const Architecture& architecture);
std::vector<TensorDecl> head_tensors(const Architecture& architecture);
/// The head of values starts with zeros. No other format has it.
inline constexpr const char* kValueHead = "value_head.weight";

/// All tensors, in the order of the model: embedding, blocks, final norm, head. Tied weights come
/// once.
std::vector<TensorDecl> architecture_tensors(const Architecture& architecture);

/// The tensor of that name, or nullptr.
const TensorDecl* find_tensor(const std::vector<TensorDecl>& tensors, const std::string& name);

/// The number of rows of the vocabulary that each of `ranks` ranks has memory for: a multiple of 8
/// where there are many, so that rows of logits (GPT-2 has 50257 in each) begin at multiples of 16
/// bytes, without which a GPU's matrix products and copies take a fraction of their speed.
std::int64_t vocabulary_rows(std::int64_t vocab_size, std::int64_t ranks);

}  // namespace dstrain
