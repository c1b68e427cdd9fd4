// Names and layouts of Hugging Face's weights, and which of our tensors they are: the table of the
// model's family (engine/config/arch), read in both directions.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/foreign_tensor.h"
#include "engine/config/model_spec.h"

namespace dstrain {

/// All tensors of a model as its causal-LM class saves them, or, of one that scores, its class for
/// sequence classification, in the order of the model. A tied head
/// is not among them.
std::vector<ForeignTensor> huggingface_tensors(const ModelSpec& model);

/// The same for a set of weights, of which `holds` says whether it has one of a name: as the class
/// saves them, or as it holds them.
std::vector<ForeignTensor> huggingface_tensors(
    const ModelSpec& model, const std::function<bool(const std::string&)>& holds);

/// The name of the class's base model in front of most names ("transformer."), which files of the
/// base model alone leave out.
std::string_view huggingface_prefix(const ModelSpec& model);

/// True of what older files hold beside the weights: causal masks, rotary frequencies.
bool is_huggingface_buffer(std::string_view name);

/// The name of the output head's weight in a model that does not tie it: "lm_head.weight", or
/// "score.weight".
std::string huggingface_head(const ModelSpec& model);

}  // namespace dstrain
