#include "engine/train/accelerators.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

/// Makes names equal that differ only in case and dashes: "A100 80GB", "a100-80gb".
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return text;
}

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 10> kUnits = {{{"b", 1.0},
                                          {"kib", 1024.0},
                                          {"mib", 1024.0 * 1024},
                                          {"gib", 1024.0 * 1024 * 1024},
                                          {"tib", 1024.0 * 1024 * 1024 * 1024},
                                          {"kb", 1e3},
                                          {"mb", 1e6},
                                          {"gb", 1e9},
                                          {"tb", 1e12},
                                          {"", 1.0}}};

std::optional<std::int64_t> parse_bytes(const std::string& text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string unit = plain(std::string_view(end, text.data() + text.size()));
  const auto found = std::find_if(kUnits.begin(), kUnits.end(),
                                  [&](const Unit& known) { return known.name == unit; });
  constexpr double kMost = 1e18;
  if (found == kUnits.end() || !(number > 0.0) || number * found->bytes > kMost) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(number * found->bytes);
}

}  // namespace

const std::vector<Accelerator>& accelerators() {
  // Memory: what nvidia-smi prints as the total. Rates: the makers' data sheets, without sparsity.
  static const std::vector<Accelerator> all = {
      {"T4", 15360 * kMiB, 65 * kTera, 16 * kGiga, false},
      {"V100-16GB", 16160 * kMiB, 125 * kTera, 150 * kGiga, false},
      {"A10", 23028 * kMiB, 125 * kTera, 32 * kGiga},
      {"L4", 23034 * kMiB, 121 * kTera, 32 * kGiga},
      {"RTX-4090", 24564 * kMiB, 165 * kTera, 32 * kGiga},
      {"RTX-3090", 24576 * kMiB, 71 * kTera, 32 * kGiga},
      {"V100-32GB", 32510 * kMiB, 125 * kTera, 150 * kGiga, false},
      {"RTX-5090", 32607 * kMiB, 210 * kTera, 64 * kGiga},
      {"A100-40GB", 40536 * kMiB, 312 * kTera, 300 * kGiga},
      {"L40S", 46068 * kMiB, 362 * kTera, 32 * kGiga},
      {"A100-80GB", 81251 * kMiB, 312 * kTera, 300 * kGiga},
      {"H100-80GB", 81559 * kMiB, 989 * kTera, 450 * kGiga},
      {"GH200-96GB", 97871 * kMiB, 989 * kTera, 450 * kGiga},
      {"H200", 143771 * kMiB, 989 * kTera, 450 * kGiga},
      {"B200", 183359 * kMiB, 2250 * kTera, 900 * kGiga}};
  return all;
}

std::optional<Accelerator> accelerator_of_model(std::string_view model) {
  struct Named {
    std::string_view model;
    std::string_view accelerator;
  };
  static constexpr std::array<Named, 17> kNamed = {
      {{"Tesla T4", "T4"},
       {"Tesla V100-SXM2-16GB", "V100-16GB"},
       {"Tesla V100-SXM2-32GB", "V100-32GB"},
       {"NVIDIA A10", "A10"},
       {"NVIDIA L4", "L4"},
       {"NVIDIA L40S", "L40S"},
       {"NVIDIA GeForce RTX 3090", "RTX-3090"},
       {"NVIDIA GeForce RTX 4090", "RTX-4090"},
       {"NVIDIA GeForce RTX 5090", "RTX-5090"},
       {"NVIDIA A100-SXM4-40GB", "A100-40GB"},
       {"NVIDIA A100-PCIE-40GB", "A100-40GB"},
       {"NVIDIA A100-SXM4-80GB", "A100-80GB"},
       {"NVIDIA A100 80GB PCIe", "A100-80GB"},
       {"NVIDIA H100 80GB HBM3", "H100-80GB"},
       {"NVIDIA GH200 480GB", "GH200-96GB"},  // its driver counts the processor's memory
       {"NVIDIA H200", "H200"},
       {"NVIDIA B200", "B200"}}};
  const auto* const named = std::find_if(kNamed.begin(), kNamed.end(),
                                         [&](const Named& one) { return one.model == model; });
  if (named == kNamed.end()) return std::nullopt;
  const std::vector<Accelerator>& all = accelerators();
  return *std::find_if(all.begin(), all.end(),
                       [&](const Accelerator& one) { return one.name == named->accelerator; });
}

std::int64_t parse_amount(const std::string& text) {
  if (const auto bytes = parse_bytes(text)) return *bytes;
  throw ConfigError(
      fmt::format("\"{}\" is not an amount of memory: expected 80GiB, 80GB, 64000MiB, …", text));
}

MemoryLimit parse_memory_limit(const std::string& text) {
  if (const auto bytes = parse_bytes(text)) {
    return {.bytes = *bytes, .name = text, .accelerator = std::nullopt};
  }
  std::vector<const Accelerator*> meant;
  std::string names;
  for (const Accelerator& accelerator : accelerators()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", accelerator.name);
    if (plain(accelerator.name) == plain(text)) {
      meant = {&accelerator};
      break;
    }
    if (!plain(text).empty() && plain(accelerator.name).starts_with(plain(text))) {
      meant.push_back(&accelerator);
    }
  }
  if (meant.size() == 1) {
    return {.bytes = meant.front()->memory_bytes,
            .name = std::string(meant.front()->name),
            .accelerator = *meant.front()};
  }
  if (meant.size() > 1) {
    std::string which;
    for (const Accelerator* const accelerator : meant) {
      which += fmt::format("{}{}", which.empty() ? "" : " or ", accelerator->name);
    }
    throw ConfigError(fmt::format("\"{}\" may be {}: write which", text, which));
  }
  throw ConfigError(fmt::format(
      "\"{}\" is neither an amount of memory (80GiB, 80GB, 64000MiB) nor one of {}", text, names));
}

}  // namespace dstrain
