#include "tests/harness/golden_model.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/core/check.h"

namespace dstrain::test {
namespace {

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.tensors().find(name);
  check(found != file.tensors().end(), "{} has no tensor {}", file.path().string(), name);
  const std::span<const std::byte> bytes = file.data(found->second);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

struct HuggingFaceTensor {
  std::string name;
  bool transposed = false;  ///< stored [in, out]
  std::int64_t part = 0;    ///< which of `parts` column groups
  std::int64_t parts = 1;
};

HuggingFaceTensor gpt2_name(const std::string& name) {
  if (name == "embedding.token.weight") {
    return {"transformer.wte.weight"};
  }
  if (name == "embedding.position.weight") {
    return {"transformer.wpe.weight"};
  }
  if (name.starts_with("final_norm.")) {
    return {"transformer.ln_f." + name.substr(11)};
  }
  const std::size_t dot = name.find('.', 7);  // after "blocks."
  const std::string prefix = "transformer.h." + name.substr(7, dot - 7) + ".";
  const std::string rest = name.substr(dot + 1);
  const std::string kind = rest.substr(rest.rfind('.') + 1);  // weight | bias
  const std::string layer = rest.substr(0, rest.rfind('.'));
  const bool matrix = kind == "weight";
  if (layer == "attention_norm" || layer == "mlp_norm") {
    return {prefix + (layer == "mlp_norm" ? "ln_2." : "ln_1.") + kind};
  }
  if (layer == "attention.output") {
    return {prefix + "attn.c_proj." + kind, matrix};
  }
  if (layer == "mlp.up") {
    return {prefix + "mlp.c_fc." + kind, matrix};
  }
  if (layer == "mlp.down") {
    return {prefix + "mlp.c_proj." + kind, matrix};
  }
  const std::int64_t part = layer == "attention.query" ? 0 : layer == "attention.key" ? 1 : 2;
  return {prefix + "attn.c_attn." + kind, matrix, part, 3};
}

HuggingFaceTensor llama_name(const std::string& name) {
  if (name == "embedding.token.weight") {
    return {"model.embed_tokens.weight"};
  }
  if (name == "final_norm.weight") {
    return {"model.norm.weight"};
  }
  if (name == "head.weight") {
    return {"lm_head.weight"};
  }
  const std::size_t dot = name.find('.', 7);
  const std::string prefix = "model.layers." + name.substr(7, dot - 7) + ".";
  const std::string rest = name.substr(dot + 1);
  const std::string kind = rest.substr(rest.rfind('.') + 1);
  const std::string layer = rest.substr(0, rest.rfind('.'));
  static const std::map<std::string, std::string> kNames{{"attention_norm", "input_layernorm"},
                                                         {"mlp_norm", "post_attention_layernorm"},
                                                         {"attention.query", "self_attn.q_proj"},
                                                         {"attention.key", "self_attn.k_proj"},
                                                         {"attention.value", "self_attn.v_proj"},
                                                         {"attention.output", "self_attn.o_proj"},
                                                         {"mlp.gate", "mlp.gate_proj"},
                                                         {"mlp.up", "mlp.up_proj"},
                                                         {"mlp.down", "mlp.down_proj"}};
  return {prefix + kNames.at(layer) + "." + kind};
}

}  // namespace

GoldenModel::GoldenModel(const std::string& name)
    : folder_("tests/golden/" + name),
      gpt2_(name.starts_with("gpt2")),
      model_(folder_ + "/model.safetensors"),
      golden_(folder_ + "/golden.safetensors"),
      batch_(golden_.tensors().at("inputs").shape.at(1)),
      sequence_(golden_.tensors().at("inputs").shape.at(2)) {}

LoadedConfig GoldenModel::config(const std::string& precision) const {
  std::ifstream in(folder_ + "/config.json");
  const nlohmann::json json{
      {"train_micro_batch_size_per_gpu", batch_},
      {"gradient_accumulation_steps", 1},
      {"gradient_clipping", 1.0},
      {"bf16", {{"enabled", precision == "bf16"}}},
      {"optimizer",
       {{"type", "AdamW"},
        {"params", {{"lr", 1e-3}, {"betas", {0.9, 0.95}}, {"eps", 1e-8}, {"weight_decay", 0.1}}}}},
      {"model", nlohmann::json::parse(in)},
      {"data", {{"train", "unused"}, {"sequence_length", sequence_}}},
      {"training", {{"steps", 10}, {"output_dir", "unused"}, {"device", "cpu"}}}};
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("dstrain-golden-" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << json.dump(2);
  LoadedConfig loaded = load_config(path.string(), {});
  std::filesystem::remove(path);
  resolve_config(loaded, 1);
  return loaded;
}

std::vector<float> GoldenModel::tensor(const SafetensorsFile& file,
                                       const std::string& prefix,
                                       const ParamDecl& param) const {
  const HuggingFaceTensor source = gpt2_ ? gpt2_name(param.name) : llama_name(param.name);
  const std::vector<float> stored = values<float>(file, prefix + source.name);
  const std::int64_t numel = param.shape.numel();
  check(static_cast<std::int64_t>(stored.size()) == numel * source.parts,
        "{} has {} elements, {} of {} were expected", source.name, stored.size(),
        numel * source.parts, param.name);
  if (!source.transposed) {
    const auto begin = stored.begin() + numel * source.part;
    return {begin, begin + numel};
  }
  const std::int64_t outputs = param.shape[0];
  const std::int64_t inputs = param.shape[1];
  const std::int64_t row = outputs * source.parts;
  std::vector<float> out(static_cast<std::size_t>(numel));
  for (std::int64_t o = 0; o < outputs; ++o) {
    for (std::int64_t i = 0; i < inputs; ++i) {
      out[static_cast<std::size_t>(o * inputs + i)] =
          stored[static_cast<std::size_t>(i * row + source.part * outputs + o)];
    }
  }
  return out;
}

std::vector<float> GoldenModel::weight(const ParamDecl& param) const {
  return tensor(model_, "", param);
}

std::vector<float> GoldenModel::gradient(const ParamDecl& param) const {
  return tensor(golden_, "grad/", param);
}

std::vector<double> GoldenModel::losses() const {
  return values<double>(golden_, "losses_f64");
}

std::vector<double> GoldenModel::grad_norms() const {
  return values<double>(golden_, "grad_norms_f64");
}

std::vector<std::int32_t> GoldenModel::tokens(const char* name, std::int64_t k) const {
  const std::vector<std::int32_t> all = values<std::int32_t>(golden_, name);
  const std::int64_t count = batch_ * sequence_;
  return {all.begin() + k * count, all.begin() + (k + 1) * count};
}

std::vector<std::int32_t> GoldenModel::inputs(std::int64_t k) const {
  return tokens("inputs", k);
}

std::vector<std::int32_t> GoldenModel::targets(std::int64_t k) const {
  return tokens("targets", k);
}

}  // namespace dstrain::test
