#include "engine/checkpoint/foreign/huggingface/names.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/config/arch/family.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::string_view kHead = "head.weight";
/// The name of the head in the classes for sequence classification.
constexpr const char* kScore = "score.weight";

bool is_of_block(const ForeignRow& row) {
  return row.theirs.find("{}") != std::string::npos;
}

std::string with_index(std::string name, std::int64_t index) {
  if (const std::size_t at = name.find("{}"); at != std::string::npos) {
    name.replace(at, 2, std::to_string(index));
  }
  return name;
}

/// Whether the name has an index of an expert behind the block's.
bool is_of_expert(std::string_view name) {
  return name.find("{}") != name.rfind("{}");
}

class Builder {
 public:
  explicit Builder(const ModelSpec& model)
      : heads_(model.num_heads), experts_(model.experts.count), scores_(model.scores) {
    for (ModelTensor& tensor : model_tensors(model)) {
      std::string name = tensor.name;
      ours_.emplace(std::move(name), std::move(tensor));
    }
  }

  void add(const ForeignRow& row, std::int64_t block) {
    const bool is_score = scores_ && row.ours.front() == kHead;
    const std::string theirs = is_score ? kScore : with_index(row.theirs, block);
    if (!is_of_expert(row.ours.front())) {
      return add(tensor_of(row, theirs, block, 0, 1));
    }
    if (is_of_expert(row.theirs)) {
      for (std::int64_t expert = 0; expert < experts_; ++expert) {
        add(tensor_of(row, with_index(theirs, expert), block, expert, expert + 1));
      }
      return;
    }
    ForeignTensor tensor = tensor_of(row, theirs, block, 0, experts_);
    tensor.experts = experts_;
    add(std::move(tensor));
  }

  std::vector<ForeignTensor> take() {
    check(ours_.empty(), "{} has no name in Hugging Face's files", ours_.begin()->first);
    return std::move(tensors_);
  }

 private:
  /// Made of ours of experts [first, end).
  ForeignTensor tensor_of(const ForeignRow& row,
                          std::string theirs,
                          std::int64_t block,
                          std::int64_t first,
                          std::int64_t end) {
    ForeignTensor tensor{.name = std::move(theirs),
                         .shape = {},
                         .transposed = row.transposed,
                         .parts = {},
                         .heads = row.by_heads ? heads_ : 0};
    for (std::int64_t expert = first; expert < end; ++expert) {
      for (const char* pattern : row.ours) {
        const auto found = pattern == nullptr
                               ? ours_.end()
                               : ours_.find(with_index(with_index(pattern, block), expert));
        if (found != ours_.end()) {
          tensor.parts.push_back(std::move(found->second));
          ours_.erase(found);
        }
      }
    }
    if (row.by_rows && !tensor.parts.empty()) {
      tensor.heads = tensor.parts.front().shape[0];
    }
    return tensor;
  }

  void add(ForeignTensor tensor) {
    if (tensor.parts.empty()) {
      return;
    }
    std::int64_t outputs = 0;
    for (const ModelTensor& part : tensor.parts) {
      outputs += part.shape[0];
    }
    if (tensor.experts > 0) {
      outputs /= tensor.experts;
      tensor.shape.push_back(tensor.experts);
    }
    const Shape& part = tensor.parts.front().shape;
    const bool turned = part.rank() == 2 && tensor.transposed;
    if (turned) {
      tensor.shape.push_back(part[1]);
    }
    tensor.shape.push_back(outputs);
    if (part.rank() == 2 && !turned) {
      tensor.shape.push_back(part[1]);
    }
    tensors_.push_back(std::move(tensor));
  }

  std::int64_t heads_;
  std::int64_t experts_;
  bool scores_;
  std::map<std::string, ModelTensor> ours_;  // that no row has named yet
  std::vector<ForeignTensor> tensors_;
};

std::vector<ForeignTensor> tensors_of(const ModelSpec& model, const std::vector<ForeignRow>& rows) {
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

}  // namespace

std::vector<ForeignTensor> huggingface_tensors(const ModelSpec& model) {
  return tensors_of(model, family_of(model).names);
}

std::vector<ForeignTensor> huggingface_tensors(
    const ModelSpec& model, const std::function<bool(const std::string&)>& holds) {
  std::vector<ForeignTensor> saved = huggingface_tensors(model);
  if (family_of(model).held_names.empty()) {
    return saved;
  }
  std::vector<ForeignTensor> held = tensors_of(model, family_of(model).held_names);
  const bool is_held = std::any_of(held.begin(), held.end(), [&](const ForeignTensor& tensor) {
    return tensor.experts > 0 && holds(tensor.name);
  });
  return is_held ? held : saved;
}

std::string_view huggingface_prefix(const ModelSpec& model) {
  return family_of(model).huggingface_prefix;
}

std::string huggingface_head(const ModelSpec& model) {
  for (const ForeignRow& row : family_of(model).names) {
    if (row.ours[0] == kHead) {
      return model.scores ? kScore : row.theirs;
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
