// Numbers from the far ends of what can be written, in every key that takes one: each is refused or
// planned within seconds and 256 MiB, as a config that somebody else wrote must not bring a login
// node down.
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <malloc.h>

#include "engine/config/config_error.h"
#include "engine/config/config_keys.h"
#include "engine/train/memory_estimate.h"
#include "engine/train/micro_batch_choice.h"
#include "tests/harness/processes.h"
#include "tests/harness/sweep.h"

namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 20;
std::atomic<std::size_t> g_bytes = 0;
std::atomic<std::size_t> g_peak = 0;

void* counted(std::size_t size) {
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t now = g_bytes += malloc_usable_size(memory);
  if (now > g_peak) g_peak = now;
  if (now > kMostBytes) {
    g_bytes -= malloc_usable_size(memory);
    std::free(memory);
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

// This program's own memory, counted, so that a case that wants too much ends before it has it.
void* operator new(std::size_t size) {
  return counted(size);
}
void* operator new[](std::size_t size) {
  return counted(size);
}
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return counted(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) g_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*size*/) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory, std::size_t /*size*/) noexcept {
  operator delete(memory);
}

namespace dstrain {
namespace {

using Strings = std::vector<std::string>;

/// The limit of processor time: most take milliseconds, a thousand blocks half a second on a fast
/// machine.
constexpr double kMostSeconds = 15.0;

// Integers and their neighbours where types end, what doubles can hold, and what is no number.
const Strings kExtremes = {"0",
                           "-1",
                           "1000",
                           "60000",
                           "1000000",
                           "2147483647",
                           "2147483648",
                           "4294967297",
                           "9007199254740992",
                           "1000000000000000000",
                           "9223372036854775807",
                           "9223372036854775808",
                           "1e18",
                           "1e308",
                           "-1e308",
                           "1e-308",
                           "1e400",
                           "NaN",
                           "Infinity"};

/// A small model, and what makes more keys apply.
struct Base {
  const char* name;
  Strings overrides;
};
const Base kBases[] = {
    {"plain", {}},
    {"gpt2",
     {R"(model={"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 4, "n_head": 2,
                "n_positions": 64})"}},
    {"qwen2",
     {"model.model_type=qwen2", "model.use_sliding_window=true", "model.sliding_window=64"}},
    {"stage 3", {"zero_optimization.stage=3", "bf16.enabled=true"}},
    {"fp16", {"fp16.enabled=true"}},
    {"fp8", {"bf16.enabled=true", "fp8.enabled=true"}},
    {"pipeline",
     {"pipeline.stages=2", "pipeline.schedule=interleaved", "pipeline.virtual_stages=2",
      "gradient_accumulation_steps=4"}},
    {"tensor parallel", {"tensor_parallel.size=2"}},
    {"activations", {"activation_checkpointing.granularity=full"}},
    {"elastic",
     {R"(elasticity={"enabled": true, "max_train_batch_size": 64, "micro_batch_sizes": [2, 4],
                     "min_gpus": 1, "max_gpus": 8, "ignore_non_elastic_batch_info": true})"}},
    {"OneCycle",
     {"scheduler.type=OneCycle", "scheduler.params.cycle_min_lr=0.001",
      "scheduler.params.cycle_max_lr=0.01"}},
    {"WarmupLR", {"scheduler.type=WarmupLR"}},
    {"WarmupDecayLR", {"scheduler.type=WarmupDecayLR"}},
    {"WarmupCosineLR", {"scheduler.type=WarmupCosineLR"}},
    {"LRRangeTest", {"scheduler.type=LRRangeTest"}},
    {"SGD", {"optimizer.type=SGD"}},
    {"Lamb", {"optimizer.type=Lamb"}},
    {"Muon", {"optimizer.type=Muon"}},
};

/// Everything that a launch looks at before it starts a rank.
std::string outcome(const std::string& file, const Strings& overrides) {
  try {
    const ConfigWith config_with = [&](const Strings& more) {
      LoadOptions options{.overrides = overrides};
      options.overrides.insert(options.overrides.end(), more.begin(), more.end());
      LoadedConfig loaded = load_config(file, options);
      choose_micro_batch(loaded, 2, {});
      resolve_config(loaded, 2);
      return loaded;
    };
    const LoadedConfig loaded = config_with({});
    static_cast<void>(to_json(loaded) + describe_origins(loaded));
    const std::optional<MemoryLimit> limit = parse_memory_limit("80GiB");
    estimate_memory(config_with, 2, {.cuda = false, .threads = 1, .ranks_per_host = 2}, limit);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Extremes {
 public:
  Extremes() {
    std::ofstream(file_) << R"({
  "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
  "model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
            "max_position_embeddings": 64},
  "data": {"train": "none", "sequence_length": 32},
  "training": {"steps": 10, "device": "cpu", "output_dir": "none"}
})";
  }

  [[nodiscard]] Config config_of(const Strings& overrides) const {
    LoadedConfig loaded = load_config(file_, {.overrides = overrides});
    resolve_config(loaded, 2);
    return loaded.config;
  }

  void add(const Strings& overrides) {
    if (met_++ % testing::one_in(5) != 0) return;
    ++cases_;
    g_peak = g_bytes.load();
    const std::size_t before = g_bytes;
    const double begin = cpu_seconds();
    std::string fault;
    try {
      static_cast<void>(outcome(file_, overrides));
    } catch (const std::bad_alloc&) {
      fault = "more than 256 MiB";
    } catch (const std::exception& error) {
      fault = error.what();
    }
    const double seconds = cpu_seconds() - begin;
    if (seconds > kMostSeconds) fault += fmt::format(" {:.1f} s", seconds);
    const auto mib = static_cast<double>(g_peak - before) / (1 << 20);
    most_mib_ = std::max(most_mib_, mib);
    most_seconds_ = std::max(most_seconds_, seconds);
    if (fault.empty()) return;
    ++faults_;
    UNSCOPED_INFO(fmt::format("{}: {}", fmt::join(overrides, " "), fault));
  }

  void check_all() const {
    std::cout << cases_ << " extreme configs: at most " << most_seconds_ << " s and " << most_mib_
              << " MiB\n";
    CHECK(faults_ == 0);
  }

 private:
  testing::TemporaryFolder folder_;
  std::string file_ = (folder_.path() / "run.json").string();
  int met_ = 0;
  int cases_ = 0;
  double most_seconds_ = 0.0;
  double most_mib_ = 0.0;
  int faults_ = 0;
};

/// How numbers may be given to a key: "training.steps=@", "optimizer.params.betas=[0.5, @]".
Strings assignments(const Key& key) {
  if (key.kind == KeyKind::kInteger || key.kind == KeyKind::kNumber) return {key.path + "=@"};
  const bool takes_numbers = key.shape.find("\"number\"") != std::string::npos ||
                             key.shape.find("\"integer\"") != std::string::npos;
  if (!takes_numbers) return {};
  return {key.path + "=@", key.path + "=[@]", key.path + "=[0.5, @]", key.path + "=[1, @]"};
}

/// Numbers inside of values that are objects.
const Strings kObjects = {
    R"(data.train=[{"path": "a", "weight": @}, {"path": "b", "weight": @}])",
    R"(model.rope_scaling={"rope_type": "llama3", "factor": @, "low_freq_factor": 1.0,
       "high_freq_factor": 4.0, "original_max_position_embeddings": 32})",
    R"(model.rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": @,
       "high_freq_factor": @, "original_max_position_embeddings": 32})",
    R"(model.rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
       "high_freq_factor": 4.0, "original_max_position_embeddings": @})",
    R"(model.rope_scaling={"rope_type": "longrope", "factor": @,
       "original_max_position_embeddings": @, "short_factor": [@, 1, 1, 1, 1, 1, 1, 1],
       "long_factor": [1, 1, @, 1, 1, 1, 1, 1]})"};

std::string with(std::string text, const std::string& value) {
  for (std::size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) {
    text.replace(at, 1, value);
  }
  return text;
}

std::string first_name(const std::string& path) {
  return path.substr(0, path.find_first_of(".="));
}

/// Whether the key means something there that it does not in the plain one.
bool is_for(const Base& base, const Config& config, const Key& key) {
  if (base.overrides.empty()) return true;
  if (key.applies) return key.applies(config);
  const std::string block = first_name(key.path);
  const bool is_size = block == "model" || block.starts_with("train_") ||
                       block == "gradient_accumulation_steps" || block == "data";
  const bool divides = base.name == std::string("pipeline") ||
                       base.name == std::string("stage 3") ||
                       base.name == std::string("tensor parallel");
  return (is_size && divides) ||
         std::any_of(base.overrides.begin(), base.overrides.end(),
                     [&](const std::string& text) { return first_name(text) == block; });
}

TEST_CASE("extreme numbers are refused or planned within seconds and 256 MiB",
          "[train][spec][slow]") {
  Extremes extremes;
  for (const Base& base : kBases) {
    const Config config = extremes.config_of(base.overrides);
    for (const Key& key : all_keys()) {
      if (!is_for(base, config, key)) continue;
      for (const std::string& assignment : assignments(key)) {
        for (const std::string& value : kExtremes) {
          Strings overrides = base.overrides;
          overrides.push_back(with(assignment, value));
          extremes.add(overrides);
        }
      }
    }
  }
  for (const std::string& assignment : kObjects) {
    for (const std::string& value : kExtremes) {
      extremes.add({with(assignment, value)});
    }
  }
  extremes.check_all();
}

TEST_CASE("so are two sizes that are extreme together", "[train][spec][slow]") {
  const Strings sizes = {"model.vocab_size",
                         "model.hidden_size",
                         "model.intermediate_size",
                         "model.num_hidden_layers",
                         "model.num_attention_heads",
                         "model.head_dim",
                         "model.max_position_embeddings",
                         "data.sequence_length",
                         "train_micro_batch_size_per_gpu",
                         "gradient_accumulation_steps"};
  Extremes extremes;
  for (const std::string& one : sizes) {
    for (const std::string& other : sizes) {
      for (const char* const value : {"1000", "1000000", "2147483647", "1000000000000"}) {
        for (const char* const divided : {"pipeline.stages=1", "pipeline.stages=2"}) {
          if (one < other) extremes.add({divided, one + "=" + value, other + "=" + value});
        }
      }
    }
  }
  extremes.check_all();
}

}  // namespace
}  // namespace dstrain
