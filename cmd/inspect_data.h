// prepare-data --inspect: the first samples that a run draws from a data set, as its model will see
// them: ids, their text, and where documents begin and end.
#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

struct InspectRequest {
  std::string dataset{};        ///< a folder that prepare-data made, or the prefix of token files
  std::int64_t samples = 0;     ///< how many
  std::int64_t sequence = 128;  ///< tokens of a sample
  std::uint64_t seed = 1234;    ///< the run's training.seed
  bool packed = false;          ///< documents packed into samples, as data.pack "best_fit"
  std::string tokenizer{};      ///< empty: the one that the data set names
  bool json = false;
  bool colours = false;
};

/// Returns what is to be printed. Throws ConfigError.
std::string inspect_data(const InspectRequest& request);

}  // namespace dstrain
