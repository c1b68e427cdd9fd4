#include "tests/harness/golden_model.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/config/model_json.h"
#include "kernels/core/check.h"

namespace dstrain::test {
namespace {

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.tensors().find(name);
  check(found != file.tensors().end(), "{} has no tensor {}", file.path(), name);
  const std::span<const std::byte> bytes = file.data(found->second);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

}  // namespace

GoldenModel::GoldenModel(const std::string& name)
    : folder_("tests/golden/" + name),
      tensors_(huggingface_tensors(load_model_spec(folder_))),
      model_(folder_ + "/model.safetensors"),
      golden_(folder_ + "/golden.safetensors"),
      batch_(golden_.tensors().at("inputs").shape.at(1)),
      sequence_(golden_.tensors().at("inputs").shape.at(2)) {}

LoadedConfig GoldenModel::config(const std::string& precision,
                                 int ranks,
                                 const nlohmann::json& changes) const {
  std::ifstream in(folder_ + "/config.json");
  nlohmann::json json{
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
  if (json.at("model").at("model_type") == "deepseek_v3") {
    json["model"]["moe_router_bias_update_rate"] = 0;  // transformers never moves the bias
  }
  json.merge_patch(changes);
  std::ofstream(path) << json.dump(2);
  LoadedConfig loaded = load_config(path.string(), {});
  std::filesystem::remove(path);
  resolve_config(loaded, ranks);
  return loaded;
}

std::vector<float> GoldenModel::tensor(const SafetensorsFile& file,
                                       const std::string& prefix,
                                       const std::string& name,
                                       Shape shape) const {
  for (const ForeignTensor& theirs : tensors_) {
    for (std::size_t i = 0; i < theirs.parts.size(); ++i) {
      if (theirs.parts[i].name == name) {
        const std::byte* first = file.data(file.tensors().at(prefix + theirs.name)).data();
        const std::int64_t numel = shape.numel();
        std::vector<float> out(static_cast<std::size_t>(numel));
        read_placed(place_of_part(theirs, i, first, DType::kF32),
                    piece_of(theirs.parts[i], {0, numel}), {out.data(), DType::kF32, {numel}});
        return out;
      }
    }
  }
  check(false, "{} has no {}", file.path(), name);
  return {};
}

std::vector<float> GoldenModel::weight(const ParamDecl& param) const {
  return tensor(model_, "", param.name, param.shape);
}

std::vector<float> GoldenModel::weight(const UntrainedDecl& tensor) const {
  return this->tensor(model_, "", tensor.name, tensor.shape);
}

void GoldenModel::load_into(Engine& engine) const {
  const Blueprint& blueprint = engine.plan().blueprint;
  Device& device = engine.device();
  const auto fill = [&](const std::vector<float>& values, const Tensor& tensor) {
    device.copy_from_host(values.data(), tensor, device.compute_stream());
    device.compute_stream().synchronize();
  };
  for (int unit = 0; unit < static_cast<int>(blueprint.units().size()); ++unit) {
    const auto& params = blueprint.units()[static_cast<std::size_t>(unit)].params;
    for (int index = 0; index < static_cast<int>(params.size()); ++index) {
      fill(weight(params[static_cast<std::size_t>(index)]),
           param_view(blueprint, engine.arena().master(unit), {unit, index}));
    }
  }
  for (const UntrainedDecl& tensor : blueprint.untrained()) {
    fill(weight(tensor), engine.arena().buffer(tensor.buffer));
  }
  engine.refresh_parameters();
}

std::vector<float> GoldenModel::gradient(const ParamDecl& param) const {
  return tensor(golden_, "grad/", param.name, param.shape);
}

std::vector<float> GoldenModel::fp8_gradient(const ParamDecl& param) const {
  return tensor(golden_, "fp8_grad/", param.name, param.shape);
}

std::vector<double> GoldenModel::fp8_losses() const {
  return values<double>(golden_, "fp8_losses");
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
