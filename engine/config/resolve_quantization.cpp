// Which weights can lie in few bits, and beside what.
#include <fmt/format.h>

#include "engine/config/arch/adapters.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"
#include "kernels/math/nf4_code.h"

namespace dstrain {
namespace {

constexpr const char* kIn4Bits = "quantization_config.load_in_4bit";
constexpr const char* kIn8Bits = "quantization_config.load_in_8bit";
constexpr const char* kComputeDType = "quantization_config.bnb_4bit_compute_dtype";

std::string name_of_compute(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return "float32";
    case Precision::kBF16:
      return "bfloat16";
    case Precision::kF16:
      return "float16";
  }
  return "";
}

}  // namespace

void resolve_quantization(const LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  if (!config.quantization.enabled()) return;
  const char* const key = config.quantization.in_4_bits ? kIn4Bits : kIn8Bits;
  const auto refuse = [&](const std::string& why) { throw_config_error(origins[key], key, why); };
  if (config.quantization.in_4_bits && config.quantization.in_8_bits) {
    refuse("weights lie in 4 bits or in 8: write false for one of the two");
  }
  if (!config.adapters.enabled()) {
    refuse("weights in few bits are not trained: say by peft.target_modules what is");
  }
  if (config.initial_weights.empty()) {
    refuse("weights that are drawn are nothing to keep: say by model.initial_weights which");
  }
  if (config.fp8.enabled) {
    refuse(
        "products in 8 bits take weights that they convert themselves: leave one of the two out");
  }
  if (config.zero.quantized_weights) {
    refuse(
        "parameters would be gathered in 8 bits (zero_quantized_weights), and these are coded "
        "already: leave one of the two out");
  }
  const std::string compute = name_of_compute(config.precision);
  const std::string& asked = config.quantization.compute_dtype;
  if (!asked.empty() && asked != compute && asked != "torch." + compute) {
    throw_config_error(origins[kComputeDType], kComputeDType,
                       fmt::format("the run computes in {}: write \"{}\", or change bf16 and fp16",
                                   compute, compute));
  }
  if (config.quantization.in_8_bits) return;  // rows of any length
  const std::vector<AdaptedModule> coded = linear_modules(config.model);
  for (const TensorDecl& tensor : architecture_tensors(config.model)) {
    if (coded_with(coded, tensor.name).empty()) continue;
    const int ranks = tensor.cut == Cut::kColumns ? config.tensor_parallel.size : 1;
    const std::int64_t columns = tensor.shape[1] / ranks;
    if (columns % Nf4Code::kBlock != 0) {
      refuse(fmt::format("{} has {} columns on a rank, and blocks of the code have {}", tensor.name,
                         columns, Nf4Code::kBlock));
    }
  }
}

}  // namespace dstrain
