// The token files of a run, as the user wrote them: part of config.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dstrain {

struct DataSource {
  std::string prefix;   ///< of a .bin/.idx pair, or a nanoGPT / llm.c .bin file
  double weight = 1.0;  ///< relative share of the samples

  bool operator==(const DataSource&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<DataSource> validation;  ///< may be empty: no evaluation
  std::int64_t sequence_length = 0;    ///< tokens of a sample

  bool operator==(const DataConfig&) const = default;
};

}  // namespace dstrain
