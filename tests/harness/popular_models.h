// Popular models as their config.json describe them: the numbers alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace dstrain::test {

struct PopularModel {
  const char* name;
  const char* type;
  std::int64_t hidden;
  std::int64_t layers;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t feed_forward;
  std::int64_t vocabulary;
  std::int64_t positions;
  bool tied;
};

inline constexpr std::array kPopularModels = {
    PopularModel{"gpt2", "gpt2", 768, 12, 12, 12, 3072, 50257, 1024, true},
    PopularModel{"gpt2-medium", "gpt2", 1024, 24, 16, 16, 4096, 50257, 1024, true},
    PopularModel{"gpt2-large", "gpt2", 1280, 36, 20, 20, 5120, 50257, 1024, true},
    PopularModel{"gpt2-xl", "gpt2", 1600, 48, 25, 25, 6400, 50257, 1024, true},
    PopularModel{"TinyLlama-1.1B", "llama", 2048, 22, 32, 4, 5632, 32000, 2048, false},
    PopularModel{"Llama-2-7b", "llama", 4096, 32, 32, 32, 11008, 32000, 4096, false},
    PopularModel{"Llama-2-13b", "llama", 5120, 40, 40, 40, 13824, 32000, 4096, false},
    PopularModel{"Llama-2-70b", "llama", 8192, 80, 64, 8, 28672, 32000, 4096, false},
    PopularModel{"Llama-3-8B", "llama", 4096, 32, 32, 8, 14336, 128256, 8192, false},
    PopularModel{"Llama-3-70B", "llama", 8192, 80, 64, 8, 28672, 128256, 8192, false},
    PopularModel{"Llama-3.1-8B", "llama", 4096, 32, 32, 8, 14336, 128256, 131072, false},
    PopularModel{"Llama-3.1-405B", "llama", 16384, 126, 128, 8, 53248, 128256, 131072, false},
    PopularModel{"Llama-3.2-1B", "llama", 2048, 16, 32, 8, 8192, 128256, 131072, true},
    PopularModel{"Llama-3.2-3B", "llama", 3072, 28, 24, 8, 8192, 128256, 131072, true},
    PopularModel{"Mistral-7B-v0.3", "mistral", 4096, 32, 32, 8, 14336, 32768, 32768, false},
    PopularModel{"Qwen2-0.5B", "qwen2", 896, 24, 14, 2, 4864, 151936, 131072, true},
    PopularModel{"Qwen2-7B", "qwen2", 3584, 28, 28, 4, 18944, 152064, 131072, false},
    PopularModel{"Qwen2-72B", "qwen2", 8192, 80, 64, 8, 29568, 152064, 131072, false},
    PopularModel{"Qwen2.5-1.5B", "qwen2", 1536, 28, 12, 2, 8960, 151936, 131072, true},
    PopularModel{"Qwen2.5-3B", "qwen2", 2048, 36, 16, 2, 11008, 151936, 32768, true},
    PopularModel{"Qwen2.5-7B", "qwen2", 3584, 28, 28, 4, 18944, 152064, 131072, false},
    PopularModel{"Qwen2.5-14B", "qwen2", 5120, 48, 40, 8, 13824, 152064, 131072, false},
    PopularModel{"Qwen2.5-32B", "qwen2", 5120, 64, 40, 8, 27648, 152064, 131072, false}};

/// As a config.json.
inline std::string config_json(const PopularModel& model) {
  if (std::string(model.type) == "gpt2") {
    return fmt::format(
        R"({{"model_type": "gpt2", "n_embd": {}, "n_layer": {}, "n_head": {}, "vocab_size": {}, "n_positions": {}}})",
        model.hidden, model.layers, model.heads, model.vocabulary, model.positions);
  }
  return fmt::format(
      R"({{"model_type": "{}", "hidden_size": {}, "num_hidden_layers": {}, "num_attention_heads": {}, )"
      R"("num_key_value_heads": {}, "intermediate_size": {}, "vocab_size": {}, )"
      R"("max_position_embeddings": {}, "tie_word_embeddings": {}}})",
      model.type, model.hidden, model.layers, model.heads, model.kv_heads, model.feed_forward,
      model.vocabulary, model.positions, model.tied);
}

}  // namespace dstrain::test
