// A model whose sizes do not suit many layouts, runs of it, and the two parts of their errors: the
// rule that is broken, and the layout that would work.
#pragma once

#include <algorithm>
#include <cstdio>

#include "tests/unit/config/config_text.h"

namespace dstrain {

/// 12 heads that share 6, 96 columns in the MLP, 6 blocks, sequences of 128.
inline const std::string kModel =
    R"(model={"model_type": "llama", "vocab_size": 256, "hidden_size": 96,
    "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 12,
    "num_key_value_heads": 6, "max_position_embeddings": 128})";
inline const std::string kGpt2 = R"(model={"model_type": "gpt2", "vocab_size": 256, "n_embd": 64,
    "n_layer": 2, "n_head": 4, "n_inner": 90, "n_positions": 128})";

inline const std::string kTwoStages = "pipeline.stages=2";
inline const std::string kInterleaved =
    R"(pipeline={"stages": 2, "schedule": "interleaved", "virtual_stages": 2})";

inline LoadedConfig resolved(int ranks, const std::vector<std::string>& sets) {
  std::vector<std::string> overrides = {kModel, "gradient_clipping=1", "train_batch_size=auto",
                                        "train_micro_batch_size_per_gpu=2",
                                        "gradient_accumulation_steps=4"};
  overrides.insert(overrides.end(), sets.begin(), sets.end());
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, ranks);
  return loaded;
}

inline std::string error_of(int ranks, const std::vector<std::string>& sets) {
  return config_error_of([&] { resolved(ranks, sets); });
}

inline const std::string kAdvice = "; nearest layout that would do: ";
inline const std::string kNoAdvice = "; with the rest as it is, no layout";

/// The error without the layout at its end.
inline std::string rule_of(int ranks, const std::vector<std::string>& sets) {
  const std::string error = error_of(ranks, sets);
  return error.substr(0, std::min(error.find(kAdvice), error.find(kNoAdvice)));
}

/// "2 x 3 on 12": tensor_parallel.size, pipeline.stages and ranks of the layout at the end of the
/// error; or the text in its place; "" if there is none.
inline std::string advice_in(const std::string& error) {
  const auto at = error.find(kAdvice);
  if (at == std::string::npos) {
    const auto none = error.find(kNoAdvice);
    return none == std::string::npos ? "" : error.substr(none + 2);
  }
  int tensor = 0;
  int stages = 0;
  int ranks = 0;
  const std::string form = "--set tensor_parallel.size=%d --set pipeline.stages=%d on %d rank";
  REQUIRE(std::sscanf(error.c_str() + at + kAdvice.size(), form.c_str(), &tensor, &stages,
                      &ranks) == 3);
  CHECK(error.ends_with(ranks == 1 ? " rank" : " ranks"));
  return fmt::format("{} x {} on {}", tensor, stages, ranks);
}

inline std::string advice_of(int ranks, const std::vector<std::string>& sets) {
  return advice_in(error_of(ranks, sets));
}

}  // namespace dstrain
