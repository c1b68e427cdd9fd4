// InspectedRun: the first samples of a run, token by token as its ranks make them, and which
// documents of which token files the tokens are of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/data_config.h"
#include "engine/config/sequence_ramp.h"
#include "engine/generate/find_tokenizer.h"

namespace dstrain {

/// The settings that decide a run's samples.
struct SampleRules {
  DataConfig data;
  std::int64_t vocab_size = 0;
  std::uint64_t seed = 0;
  SequenceRamp curriculum{};
};

/// Tokens of one sample that are of one document and see each other; or what fills a sample up.
struct InspectedStretch {
  std::optional<std::int64_t> document{};  ///< none: nothing tells documents apart
  std::int64_t first = 0;                  ///< of the document's tokens, or of the file's
  bool ends_document = false;
  bool fills_up = false;
  std::vector<std::int32_t> ids{};
  std::vector<std::int32_t> positions{};  ///< as the model is told them
  std::vector<int> predicts{};            ///< 1 where the token's target counts in the loss, else 0
};

struct InspectedSample {
  int source = 0;
  std::int64_t begin = 0;  ///< of the source's tokens; where documents are packed, the first one's
  std::vector<InspectedStretch> stretches{};
};

struct InspectedSource {
  struct Packing {
    std::int64_t samples = 0;
    std::int64_t cut_documents = 0;
    double fill = 0.0;
  };
  std::string prefix;
  std::int64_t tokens = 0;
  std::optional<std::int64_t> documents{};
  std::optional<Packing> packing{};
};

struct InspectedRun {
  SampleRules rules;
  FoundTokenizer tokenizer;
  std::vector<InspectedSource> sources{};
  std::vector<InspectedSample> samples{};  ///< as many as were asked for, and an epoch has
};

/// Throws ConfigError.
InspectedRun inspect_run(const SampleRules& rules, std::int64_t samples);

}  // namespace dstrain
