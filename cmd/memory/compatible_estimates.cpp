#include "cmd/memory/compatible_estimates.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "engine/config/arch/architecture.h"
#include "engine/config/arch/model_counts.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

// Figures are computed in doubles and cut to whole bytes where DeepSpeed's Python does so, and in
// its order of operations: the last byte depends on it.
double real(std::int64_t number) {
  return static_cast<double>(number);
}

std::int64_t whole(double bytes) {
  return static_cast<std::int64_t>(bytes);
}

void check_hardware(const DeepSpeedHardware& hardware) {
  check(hardware.gpus_per_node >= 1 && hardware.nodes >= 1, "{} GPUs on each of {} nodes",
        hardware.gpus_per_node, hardware.nodes);
}

std::string deepspeed_heading(const DeepSpeedHardware& hardware, const std::string& parameters) {
  return fmt::format(
      "Estimated memory needed for params, optim states and gradients for a:\n"
      "HW: Setup with {} {}, {} {} per node.\n"
      "SW: Model with {}.\n"
      "  per CPU  |  per GPU |   Options\n",
      hardware.nodes, hardware.nodes > 1 ? "nodes" : "node", hardware.gpus_per_node,
      hardware.gpus_per_node > 1 ? "GPUs" : "GPU", parameters);
}

std::string deepspeed_row(const DeepSpeedEstimate& estimate, const std::string& options) {
  constexpr double kGB = 1 << 30;
  return fmt::format(" {:7.2f}GB | {:6.2f}GB | {}\n", real(estimate.cpu_bytes) / kGB,
                     real(estimate.gpu_bytes) / kGB, options);
}

/// Padded to the width of "none".
const char* device(bool offloaded) {
  return offloaded ? "cpu " : "none";
}

std::string millions(std::int64_t parameters) {
  return fmt::format("{}M", parameters / 1'000'000);
}

std::int64_t linear(std::int64_t in, std::int64_t out, bool bias) {
  return in * out + (bias ? out : 0);
}

ModelSpec without_blocks(ModelSpec model) {
  model.num_layers = 0;
  return model;
}

std::size_t width_of(std::string_view text) {  // in code points
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

/// As Python's str.center: the odd space goes left where the width is odd, else right.
std::string centred(std::string_view text, std::size_t width) {
  const std::size_t length = width_of(text);
  if (length >= width) return std::string(text);
  const std::size_t margin = width - length;
  const std::size_t left = margin / 2 + (margin & width & 1U);
  return std::string(left, ' ') + std::string(text) + std::string(margin - left, ' ');
}

using TableRow = std::array<std::string, 4>;
using Widths = std::array<std::size_t, 4>;

std::string ruler(const Widths& widths, const char* left, const char* between, const char* right) {
  std::string text = left;
  for (std::size_t column = 0; column < widths.size(); ++column) {
    if (column > 0) text += between;
    for (std::size_t i = 0; i < widths[column]; ++i)
      text += "─";
  }
  return text + right + "\n";
}

std::string table_line(const Widths& widths, const TableRow& row) {
  std::string text = "│";
  for (std::size_t column = 0; column < widths.size(); ++column) {
    text += centred(row[column], widths[column]) + "│";
  }
  return text + "\n";
}

/// Columns as wide as their longest cell. A title longer than the cells together widens the last
/// column by twice what it differs from the table's width by, which is accelerate's arithmetic.
Widths table_widths(const std::vector<TableRow>& rows, std::string_view title) {
  Widths widths = {};
  for (const TableRow& row : rows) {
    for (std::size_t column = 0; column < widths.size(); ++column) {
      widths[column] = std::max(widths[column], width_of(row[column]));
    }
  }
  const std::size_t cells = widths[0] + widths[1] + widths[2] + widths[3];
  const std::size_t table = cells + widths.size() + 1;
  const std::size_t length = width_of(title);
  if (length > cells) widths.back() += 2 * (std::max(length, table) - std::min(length, table));
  return widths;
}

}  // namespace

// Some families' modules join q, k and v, the others' are apart.
DeepSpeedModelSize deepspeed_model_size(const ModelSpec& m) {
  const std::int64_t query = m.num_heads * m.head_dim;
  const std::int64_t key_value = m.num_key_value_heads * m.head_dim;
  constexpr std::array<std::string_view, 4> kJoined = {"gpt2", "gpt_neox", "bloom", "baichuan"};
  const bool joined = std::find(kJoined.begin(), kJoined.end(), m.model_type) != kJoined.end();
  return {.total_params = num_parameters(m),
          .largest_layer_params = std::max({
              m.vocab_size * m.hidden_size,
              Architecture(m).learned_positions * m.hidden_size,
              linear(m.hidden_size, joined ? query + 2 * key_value : query, m.qkv_bias),
              linear(query, m.hidden_size, m.attention_output_bias),
              linear(m.hidden_size, m.intermediate_size, m.mlp_bias),
              linear(m.intermediate_size, m.hidden_size, m.mlp_bias),
          })};
}

// Bytes a parameter: 2 its 16-bit weight, and cut over the ranks or offloaded 18: 2 + 4 its
// gradient in 16 and 32 bits, 4 its f32 copy, 8 Adam's averages. When offloaded, a node needs 4
// bytes per rank of the whole job: this is DeepSpeed's own arithmetic, although the figure is for
// one node.
std::vector<DeepSpeedEstimate> deepspeed_zero2_estimates(std::int64_t total_params,
                                                         const DeepSpeedHardware& hardware) {
  check_hardware(hardware);
  const std::int64_t gpus = hardware.gpus_per_node * hardware.nodes;
  const double factor = hardware.additional_buffer_factor;
  return {{.offload_optimizer = true,
           .cpu_bytes = whole(real(total_params * std::max<std::int64_t>(4 * gpus, 16)) * factor),
           .gpu_bytes = 2 * total_params},
          {.cpu_bytes = whole(real(total_params * 4 * hardware.gpus_per_node) * factor),
           .gpu_bytes = 2 * total_params + whole(real(18 * total_params) / real(gpus))}};
}

// A GPU gathers one layer at a time: 2 bytes each of its weights and gradients. Without zero_init
// every rank of a node first builds the model in f32.
std::vector<DeepSpeedEstimate> deepspeed_zero3_estimates(const DeepSpeedModelSize& size,
                                                         const DeepSpeedHardware& hardware) {
  check_hardware(hardware);
  const std::int64_t total = size.total_params;
  const std::int64_t gpus = hardware.gpus_per_node * hardware.nodes;
  const double node_share = 1.0 / real(hardware.nodes);
  const double factor = hardware.additional_buffer_factor;
  const std::int64_t layer = 4 * size.largest_layer_params;
  const auto built_whole = static_cast<double>(4 * hardware.gpus_per_node);
  const auto offloaded = [&](int bytes, bool zero_init) {
    if (zero_init) return whole(real(total * bytes) * node_share * factor);
    return whole(real(total) * std::max(built_whole, bytes * node_share) * factor);
  };
  const auto built_on_host = [&](std::int64_t params) {
    return whole(real(params * 4 * hardware.gpus_per_node) * factor);
  };
  std::vector<DeepSpeedEstimate> rows;
  for (const bool zero_init : {true, false}) {
    rows.push_back({.offload_optimizer = true,
                    .offload_param = true,
                    .zero_init = zero_init,
                    .cpu_bytes = offloaded(18, zero_init),
                    .gpu_bytes = layer});
  }
  for (const bool zero_init : {true, false}) {
    rows.push_back({.offload_optimizer = true,
                    .zero_init = zero_init,
                    .cpu_bytes = offloaded(16, zero_init),
                    .gpu_bytes = layer + whole(real(2 * total) / real(gpus))});
  }
  for (const bool zero_init : {true, false}) {
    rows.push_back({.zero_init = zero_init,
                    .cpu_bytes = built_on_host(zero_init ? size.largest_layer_params : total),
                    .gpu_bytes = layer + whole(real(18 * total) / real(gpus))});
  }
  return rows;
}

std::string deepspeed_zero2_text(std::int64_t total_params, const DeepSpeedHardware& hardware) {
  std::string text = deepspeed_heading(hardware, millions(total_params) + " total params");
  for (const DeepSpeedEstimate& row : deepspeed_zero2_estimates(total_params, hardware)) {
    text += deepspeed_row(row, fmt::format("offload_optimizer={}", device(row.offload_optimizer)));
  }
  return text;
}

std::string deepspeed_zero3_text(const DeepSpeedModelSize& size,
                                 const DeepSpeedHardware& hardware) {
  std::string text = deepspeed_heading(
      hardware, fmt::format("{} total params, {} largest layer params", millions(size.total_params),
                            millions(size.largest_layer_params)));
  for (const DeepSpeedEstimate& row : deepspeed_zero3_estimates(size, hardware)) {
    text += deepspeed_row(row, fmt::format("offload_param={}, offload_optimizer={}, zero_init={}",
                                           device(row.offload_param), device(row.offload_optimizer),
                                           row.zero_init ? 1 : 0));
  }
  return text;
}

std::int64_t HuggingFaceTraining::peak() const {
  return std::max({model, gradients, optimizer, step});
}

std::vector<HuggingFaceEstimate> huggingface_estimates(const ModelSpec& m) {
  constexpr std::int64_t kF32Bytes = 4;
  const std::int64_t table = m.vocab_size * m.hidden_size;
  const std::int64_t outside = num_parameters(without_blocks(m));
  const std::int64_t block = m.num_layers == 0 ? 0 : (num_parameters(m) - outside) / m.num_layers;
  const std::int64_t positions = Architecture(m).learned_positions * m.hidden_size;
  // One frequency for each pair of dims, and a copy as they were before scaling.
  const std::int64_t rotary = m.position == PositionKind::kRope ? 2 * (m.head_dim / 2) : 0;
  const std::int64_t head = m.tied_embeddings ? 0 : table;
  const std::int64_t layer = kF32Bytes * std::max({block, table, positions});
  const std::int64_t total = kF32Bytes * (num_parameters(m) - head + rotary);

  // Mixed precision keeps f32 weights and averages, and gradients in both precisions.
  const HuggingFaceTraining f32 = {
      .model = total, .gradients = total, .optimizer = 2 * total, .step = 4 * total};
  const HuggingFaceTraining f16 = {
      .model = total, .gradients = total + total / 2, .optimizer = 2 * total, .step = 2 * total};
  return {{"float32", 1, layer, total, f32},
          {"float16", 2, layer, total, f16},
          {"int8", 4, layer, total, std::nullopt},
          {"int4", 8, layer, total, std::nullopt}};
}

// The decimals are those of a Python number: whole bytes that were never divided have none, all
// others at least one.
std::string huggingface_size(std::int64_t bytes, int divisor) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KB", "MB", "GB", "TB"};
  if (divisor == 1 && bytes < 1024) return fmt::format("{} bytes", bytes);
  double size = real(bytes) / divisor;
  std::size_t unit = 0;
  while (unit < kUnits.size() && size >= 1024.0) {
    size /= 1024.0;
    ++unit;
  }
  std::string digits = fmt::format("{:.2f}", size);
  if (digits.back() == '0') digits.pop_back();
  return fmt::format("{} {}", digits, unit < kUnits.size() ? kUnits[unit] : "PB");
}

std::string huggingface_text(const std::string& model_name,
                             const std::vector<HuggingFaceEstimate>& rows) {
  const std::string title = fmt::format("Memory Usage for loading `{}`", model_name);
  std::vector<TableRow> cells = {{"dtype", "Largest Layer", "Total Size", "Training using Adam"}};
  for (const HuggingFaceEstimate& row : rows) {
    cells.push_back({std::string(row.dtype),
                     huggingface_size(row.float32_largest_layer_bytes, row.divisor),
                     huggingface_size(row.float32_total_bytes, row.divisor),
                     row.training ? huggingface_size(row.training->peak(), 1) : "N/A"});
  }
  const Widths widths = table_widths(cells, title);
  const std::size_t inner = widths[0] + widths[1] + widths[2] + widths[3] + widths.size() - 1;
  std::string text = ruler(widths, "┌", "─", "┐") + "│" + centred(title, inner) + "│\n" +
                     ruler(widths, "├", "┬", "┤");
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += table_line(widths, cells[i]);
    if (i == 0) text += ruler(widths, "├", "┼", "┤");
  }
  return text + ruler(widths, "└", "┴", "┘");
}

}  // namespace dstrain
