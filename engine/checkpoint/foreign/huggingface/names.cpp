#include "engine/checkpoint/foreign/huggingface/names.h"

#include <map>

#include "engine/config/arch/family.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

bool is_of_block(const ForeignRow& row) {
  return row.theirs.find("{}") != std::string::npos;
}

std::string with_index(std::string name, std::int64_t block) {
  if (const std::size_t at = name.find("{}"); at != std::string::npos) {
    name.replace(at, 2, std::to_string(block));
  }
  return name;
}

class Builder {
 public:
  explicit Builder(const ModelSpec& model) : heads_(model.num_heads) {
    for (ModelTensor& tensor : model_tensors(model)) {
      std::string name = tensor.name;
      ours_.emplace(std::move(name), std::move(tensor));
    }
  }

  void add(const ForeignRow& row, std::int64_t block) {
    ForeignTensor tensor{.name = with_index(row.theirs, block),
                         .shape = {},
                         .transposed = row.transposed,
                         .parts = {},
                         .heads = row.by_heads ? heads_ : 0};
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
  std::int64_t heads_;
  std::map<std::string, ModelTensor> ours_;  // that no row has named yet
  std::vector<ForeignTensor> tensors_;
};

}  // namespace

std::vector<ForeignTensor> huggingface_tensors(const ModelSpec& model) {
  const std::vector<ForeignRow>& rows = family_of(model).names;
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
  return family_of(model).huggingface_prefix;
}

std::string huggingface_head(const ModelSpec& model) {
  for (const ForeignRow& row : family_of(model).names) {
    if (row.ours[0] == std::string_view("head.weight")) {
      return row.theirs;
    }
  }
  check(false, "{} has no name for a head", model.model_type);
  return "";
}

bool is_huggingface_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq");
}

}  // namespace dstrain
