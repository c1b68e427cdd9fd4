#include "engine/checkpoint/foreign/huggingface/names.h"

#include <array>
#include <map>
#include <span>

#include <fmt/format.h>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

enum class Layout : std::uint8_t { kSame, kTransposed };

/// {} is the block's index. A row whose tensors the model lacks (biases, an untied head) is left
/// out.
struct Row {
  const char* theirs;
  Layout layout;
  std::array<const char*, 3> ours;  // stacked; nullptr: fewer
};

// Conv1D keeps y = x·W + b: W is [in, out].
constexpr Row kGpt2[] = {
    {"transformer.wte.weight", Layout::kSame, {"embedding.token.weight"}},
    {"transformer.wpe.weight", Layout::kSame, {"embedding.position.weight"}},
    {"transformer.h.{}.ln_1.weight", Layout::kSame, {"blocks.{}.attention_norm.weight"}},
    {"transformer.h.{}.ln_1.bias", Layout::kSame, {"blocks.{}.attention_norm.bias"}},
    {"transformer.h.{}.attn.c_attn.weight",
     Layout::kTransposed,
     {"blocks.{}.attention.query.weight", "blocks.{}.attention.key.weight",
      "blocks.{}.attention.value.weight"}},
    {"transformer.h.{}.attn.c_attn.bias",
     Layout::kSame,
     {"blocks.{}.attention.query.bias", "blocks.{}.attention.key.bias",
      "blocks.{}.attention.value.bias"}},
    {"transformer.h.{}.attn.c_proj.weight",
     Layout::kTransposed,
     {"blocks.{}.attention.output.weight"}},
    {"transformer.h.{}.attn.c_proj.bias", Layout::kSame, {"blocks.{}.attention.output.bias"}},
    {"transformer.h.{}.ln_2.weight", Layout::kSame, {"blocks.{}.mlp_norm.weight"}},
    {"transformer.h.{}.ln_2.bias", Layout::kSame, {"blocks.{}.mlp_norm.bias"}},
    {"transformer.h.{}.mlp.c_fc.weight", Layout::kTransposed, {"blocks.{}.mlp.up.weight"}},
    {"transformer.h.{}.mlp.c_fc.bias", Layout::kSame, {"blocks.{}.mlp.up.bias"}},
    {"transformer.h.{}.mlp.c_proj.weight", Layout::kTransposed, {"blocks.{}.mlp.down.weight"}},
    {"transformer.h.{}.mlp.c_proj.bias", Layout::kSame, {"blocks.{}.mlp.down.bias"}},
    {"transformer.ln_f.weight", Layout::kSame, {"final_norm.weight"}},
    {"transformer.ln_f.bias", Layout::kSame, {"final_norm.bias"}},
    {"lm_head.weight", Layout::kSame, {"head.weight"}},
};

constexpr Row kLlama[] = {
    {"model.embed_tokens.weight", Layout::kSame, {"embedding.token.weight"}},
    {"model.layers.{}.input_layernorm.weight", Layout::kSame, {"blocks.{}.attention_norm.weight"}},
    {"model.layers.{}.self_attn.q_proj.weight",
     Layout::kSame,
     {"blocks.{}.attention.query.weight"}},
    {"model.layers.{}.self_attn.q_proj.bias", Layout::kSame, {"blocks.{}.attention.query.bias"}},
    {"model.layers.{}.self_attn.k_proj.weight", Layout::kSame, {"blocks.{}.attention.key.weight"}},
    {"model.layers.{}.self_attn.k_proj.bias", Layout::kSame, {"blocks.{}.attention.key.bias"}},
    {"model.layers.{}.self_attn.v_proj.weight",
     Layout::kSame,
     {"blocks.{}.attention.value.weight"}},
    {"model.layers.{}.self_attn.v_proj.bias", Layout::kSame, {"blocks.{}.attention.value.bias"}},
    {"model.layers.{}.self_attn.o_proj.weight",
     Layout::kSame,
     {"blocks.{}.attention.output.weight"}},
    {"model.layers.{}.self_attn.o_proj.bias", Layout::kSame, {"blocks.{}.attention.output.bias"}},
    {"model.layers.{}.post_attention_layernorm.weight",
     Layout::kSame,
     {"blocks.{}.mlp_norm.weight"}},
    {"model.layers.{}.mlp.gate_proj.weight", Layout::kSame, {"blocks.{}.mlp.gate.weight"}},
    {"model.layers.{}.mlp.gate_proj.bias", Layout::kSame, {"blocks.{}.mlp.gate.bias"}},
    {"model.layers.{}.mlp.up_proj.weight", Layout::kSame, {"blocks.{}.mlp.up.weight"}},
    {"model.layers.{}.mlp.up_proj.bias", Layout::kSame, {"blocks.{}.mlp.up.bias"}},
    {"model.layers.{}.mlp.down_proj.weight", Layout::kSame, {"blocks.{}.mlp.down.weight"}},
    {"model.layers.{}.mlp.down_proj.bias", Layout::kSame, {"blocks.{}.mlp.down.bias"}},
    {"model.norm.weight", Layout::kSame, {"final_norm.weight"}},
    {"lm_head.weight", Layout::kSame, {"head.weight"}},
};

bool is_gpt2(const ModelSpec& model) {
  return model.model_type == "gpt2";
}

std::span<const Row> table_of(const ModelSpec& model) {
  return is_gpt2(model) ? std::span<const Row>(kGpt2) : std::span<const Row>(kLlama);
}

bool is_of_block(const Row& row) {
  return std::string_view(row.theirs).find("{}") != std::string_view::npos;
}

std::string with_index(const char* pattern, std::int64_t block) {
  std::string name = pattern;
  if (const std::size_t at = name.find("{}"); at != std::string::npos) {
    name.replace(at, 2, std::to_string(block));
  }
  return name;
}

class Builder {
 public:
  explicit Builder(const ModelSpec& model) {
    for (ModelTensor& tensor : model_tensors(model)) {
      std::string name = tensor.name;
      ours_.emplace(std::move(name), std::move(tensor));
    }
  }

  void add(const Row& row, std::int64_t block) {
    ForeignTensor tensor{.name = with_index(row.theirs, block),
                         .shape = {},
                         .transposed = row.layout == Layout::kTransposed,
                         .parts = {}};
    std::int64_t outputs = 0;
    for (const char* pattern : row.ours) {
      const auto found = pattern == nullptr ? ours_.end() : ours_.find(with_index(pattern, block));
      if (found != ours_.end()) {
        outputs += found->second.shape[0];
        tensor.parts.push_back(std::move(found->second));
        ours_.erase(found);
      }
    }
    if (tensor.parts.empty()) {
      return;
    }
    const Shape& part = tensor.parts.front().shape;
    if (part.rank() == 1) {
      tensor.shape = {outputs};
    } else {
      tensor.shape = tensor.transposed ? Shape{part[1], outputs} : Shape{outputs, part[1]};
    }
    tensors_.push_back(std::move(tensor));
  }

  std::vector<ForeignTensor> take() {
    check(ours_.empty(), "{} has no name in Hugging Face's files", ours_.begin()->first);
    return std::move(tensors_);
  }

 private:
  std::map<std::string, ModelTensor> ours_;  // that no row has named yet
  std::vector<ForeignTensor> tensors_;
};

}  // namespace

std::vector<ForeignTensor> huggingface_tensors(const ModelSpec& model) {
  const std::span<const Row> rows = table_of(model);
  Builder builder(model);
  for (auto row = rows.begin(); row != rows.end();) {
    if (!is_of_block(*row)) {
      builder.add(*row++, 0);
      continue;
    }
    auto end = row;
    while (end != rows.end() && is_of_block(*end)) {
      ++end;
    }
    for (std::int64_t block = 0; block < model.num_layers; ++block) {
      for (auto of_block = row; of_block != end; ++of_block) {
        builder.add(*of_block, block);
      }
    }
    row = end;
  }
  return builder.take();
}

std::string_view huggingface_prefix(const ModelSpec& model) {
  return is_gpt2(model) ? "transformer." : "model.";
}

bool is_huggingface_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq");
}

}  // namespace dstrain
